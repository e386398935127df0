#!/bin/sh
# install.sh VENV: a genuine SGLang 0.5.23 on the CPU, about 90 s and 1.8 GB; a second call is instant.
# Never plain `pip install sglang`: that pulls the CUDA build of torch.
set -e
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh VENV}
stamp="$venv/.heddle-engines"
recipe=$(cat "$here/install.sh" "$here/make_model.py" "$here"/requirements-*.txt | sha256sum | cut -c1-16)
if [ "$(cat "$stamp" 2>/dev/null)" = "$recipe" ]; then
  exit 0
fi
echo "installing a genuine SGLang into $venv (about 90 s, 1.8 GB) ..."
rm -f "$stamp"
test -x "$venv/bin/pip" || python3 -m venv "$venv"
"$venv/bin/pip" install -qq torch==2.13.0
"$venv/bin/pip" install -qq --no-deps -r "$here/requirements-nodeps.txt"
"$venv/bin/pip" install -qq -r "$here/requirements-top.txt"
TQDM_DISABLE=1 PYTHONPATH="$here/shim" "$venv/bin/python" "$here/make_model.py" "$venv/tiny-qwen3" 64 2
echo "$recipe" >"$stamp"
