#!/usr/bin/env bash
# Measures two cells under 15 configurations and draws their history:
#     bash docs/screenshots/history.sh FOLDER    writes FOLDER/history.png; FOLDER must not be there yet
# The trainers are stand-ins (train.py), so the speeds are made up; the changes between them are not.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
mkdir "$1"
cd "$1"
cp "$here/config.yaml" "$here/train.py" .
mkdir pipelines
cat > pipelines/matrix.toml << 'MATRIX'
[matrix]
name = "two cells"
platform = "node"
framework = ["native", "titan"]
model = "llama-1b"
parallelism = "single"
repeats = 5
MATRIX
for framework in native titan; do
    tprimat --quiet recipe copy cmd --as "$framework"
done
# A build after each of these: a file, and what sed makes of it.
while read -r file change; do
    [ "$file" = - ] || sed -i "$change" "$file"
    tprimat --quiet build > build.log
done << 'CHANGES'
-
train.py 1i # a comment
config.yaml s/learning_rate: 1.0e-3/learning_rate: 2.0e-3/
config.yaml s/^training:/training:\n  activation_checkpointing: true/
config.yaml s/optimizer: {/optimizer: { weight_decay: 0.2,/
config.yaml s/^training:/training:\n  compile: true/
train.py s/54e3/50e3/; s/58e3/54e3/
config.yaml s/optimizer: {/optimizer: { beta2: 0.99,/
config.yaml s/command: \[python3, train.py, \([a-z]*\)\]/&, env: { NCCL_ALGO: Ring }/
config.yaml s/activation_checkpointing: true/activation_checkpointing: false/
config.yaml s/warmup_steps: 2/warmup_steps: 3/
config.yaml s/NCCL_ALGO: Ring/NCCL_ALGO: Tree/
config.yaml s/compile: true/compile: false/
config.yaml s/learning_rate: 2.0e-3/learning_rate: 1.0e-3/; s/NCCL_ALGO: Tree/NCCL_ALGO: Ring/
train.py s/a comment/another comment/
CHANGES
tprimat history -o history.png
