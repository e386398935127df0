# ruff: noqa
# type: ignore
"""Sweep one system with the AIConfigurator Python API (aiconfigurator==0.12.0, Apache-2.0; works offline).

Usage: python aic_sweep.py <h200_sxm|h100_sxm> <directory holding the Qwen3-14B config.json>
Writes prefill_<system>.csv and decode_<system>.csv into the current directory.
"""

import contextlib, csv, io, logging, sys, time, warnings

warnings.filterwarnings("ignore")
logging.disable(logging.CRITICAL)
import functools
import aiconfigurator_core.sdk.perf_database as pdb

# Every call re-parses ~330 YAML files only to resolve versions: memoise that step (results unchanged).
for _n in ("get_supported_databases", "_declared_versions"):
    if hasattr(pdb, _n):
        setattr(pdb, _n, functools.lru_cache(None)(getattr(pdb, _n)))
from aiconfigurator.cli.api import cli_estimate

system, q14 = sys.argv[1], sys.argv[2]
models = {"Qwen3-8B": "Qwen/Qwen3-8B", "Qwen3-14B": q14, "Qwen3-32B": "Qwen/Qwen3-32B"}
COMMON = dict(
    backend_name="sglang",
    gemm_quant_mode="bfloat16",
    kvcache_quant_mode="bfloat16",
    fmha_quant_mode="bfloat16",
)


def est(**kw):
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        return cli_estimate(**kw, **COMMON)


t0 = time.time()
with open(f"prefill_{system}.csv", "w", newline="") as f:
    w = csv.writer(f)
    w.writerow(
        "system,model,tp,batch,new_tokens,prefix_tokens,ttft_ms,mem_gib,oom,backend_version,err".split(
            ","
        )
    )
    for mn, mp in models.items():
        for tp in (1, 2, 4, 8):
            for p in (0, 8192, 32768, 65536):
                for n in (64, 256, 512, 1024, 2048, 4096, 8192, 16384):
                    try:
                        r = est(
                            model_path=mp,
                            system_name=system,
                            mode="static_ctx",
                            isl=n + p,
                            prefix=p,
                            osl=2,
                            batch_size=1,
                            tp_size=tp,
                        )
                        w.writerow(
                            [
                                system,
                                mn,
                                tp,
                                1,
                                n,
                                p,
                                round(r.ttft, 4),
                                round(float(r.memory), 2),
                                int(bool(r.summary.check_oom())),
                                r.backend_version,
                                "",
                            ]
                        )
                    except Exception as e:
                        w.writerow([system, mn, tp, 1, n, p, "", "", "", "", repr(e)[:160]])
                f.flush()
print("prefill", system, time.time() - t0, flush=True)
with open(f"decode_{system}.csv", "w", newline="") as f:
    w = csv.writer(f)
    w.writerow(
        "system,model,tp,batch,ctx_start,osl,tpot_ms,mem_gib,oom,backend_version,err".split(",")
    )
    for mn, mp in models.items():
        for tp in (1, 2, 4, 8):
            for isl in (1024, 8192, 32768):
                for b in (1, 4, 16, 32, 64, 100, 128, 256):
                    try:
                        r = est(
                            model_path=mp,
                            system_name=system,
                            mode="static_gen",
                            isl=isl,
                            osl=64,
                            batch_size=b,
                            tp_size=tp,
                        )
                        w.writerow(
                            [
                                system,
                                mn,
                                tp,
                                b,
                                isl,
                                64,
                                round(r.tpot, 4),
                                round(float(r.memory), 2),
                                int(bool(r.summary.check_oom())),
                                r.backend_version,
                                "",
                            ]
                        )
                    except Exception as e:
                        w.writerow([system, mn, tp, b, isl, 64, "", "", "", "", repr(e)[:160]])
            f.flush()
print("all", system, time.time() - t0, flush=True)
