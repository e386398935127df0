#!/bin/sh
# serve.sh VENV PORT [SGLang flags...]: one genuine SGLang engine on the CPU with the tiny model, in the foreground.
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: serve.sh VENV PORT [flags]}; port=${2:?usage: serve.sh VENV PORT [flags]}; shift 2
# One OpenMP thread and --sleep-on-idle are vital on two cores: without them decode falls 20x and an
# idle engine burns half a core. IDLE= leaves the flag out: with HiCache a scheduler that waits only
# for its host would sleep up to a second.
export SGLANG_USE_CPU_ENGINE=1 HF_HUB_OFFLINE=1 OMP_NUM_THREADS=1 SGLANG_TRACE_LEVEL=1 PYTHONPATH="$here/shim${HEDDLE_PLUGINS:+:$HEDDLE_PLUGINS}"
exec "$venv/bin/python" -m sglang.launch_server --model-path "${MODEL:-$venv/tiny-qwen3}" --device cpu --attention-backend torch_native \
  --sampling-backend pytorch --disable-cuda-graph --host 127.0.0.1 --port "$port" --max-total-tokens "${TOKENS:-8192}" \
  --mem-fraction-static 0.1 ${IDLE---sleep-on-idle} --enable-metrics "$@"
