#!/bin/sh
# install.sh VENV UV: verl 0.9.1 and what its router and agent loop import, and SGLang's router, in
# about 30 s and 1.5 GB; a second call is instant. Of Heddle the base install alone, as a trainer's environment has it.
# Never plain `pip install verl`: that pulls wandb, peft, accelerate and the CUDA build of torch.
set -e
here=$(cd "$(dirname "$0")" && pwd)
venv=${1:?usage: install.sh VENV UV}
uv=${2:?usage: install.sh VENV UV}
stamp="$venv/.heddle-verl"
recipe=$(cat "$here/install.sh" "$here"/requirements.txt "$here/../../pyproject.toml" | sha256sum | cut -c1-16)
if [ "$(cat "$stamp" 2>/dev/null)" = "$recipe" ]; then
  exit 0
fi
echo "installing verl into $venv (about 30 s, 1.5 GB) ..."
rm -f "$stamp"
# Links instead of copies take a third of the time, where the cache is on the same file system.
if [ "$(stat -c %d "$("$uv" cache dir)" 2>/dev/null)" = "$(stat -c %d "$(dirname "$venv")")" ]; then
  export UV_LINK_MODE=hardlink
fi
test -x "$venv/bin/python" || "$uv" venv -q --python python3 "$venv"
"$uv" pip install -q --python "$venv/bin/python" -r "$here/requirements.txt"
"$uv" pip install -q --python "$venv/bin/python" --no-deps verl==0.9.1
"$uv" pip install -q --python "$venv/bin/python" -e "$here/../.."
echo "$recipe" >"$stamp"
