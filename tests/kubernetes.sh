#!/usr/bin/env bash
# Runs as Jobs of a real cluster: `make kubernetes`. It takes a few minutes. What it needs:
#
#   KUBECONFIG or ~/.kube/config, whose current context names a cluster and a namespace that Jobs may be made in
#   FOLDER   an empty folder that the pods see under the same path; tprimat is copied into it
#   VOLUMES  the volumes that have it, and whatever the image lacks, as in config.yaml: "team:/home, /data:ro"
#   IMAGE    with its digest; it needs bash and env
set -euo pipefail
: "${FOLDER:?a folder that the pods see}" "${VOLUMES:?the volumes of the pods}" "${IMAGE:?an image with its digest}"
[ -z "$(ls -A "$FOLDER")" ] || { echo "$FOLDER is not empty"; exit 1; }
cp "${TPRIMAT:-target/release/tprimat}" "$FOLDER/tprimat"
mkdir "$FOLDER/project"
cd "$FOLDER/project"

config() { # memory, image
    cat > config.yaml <<EOF
hardware: { platforms: { cpu: { vendor: cpu, num_gpus: 1 } } }
models:
  tiny: { architecture: llama, num_layers: 2, hidden_size: 8, ffn_hidden_size: 16, num_attention_heads: 2, num_kv_heads: 2, vocab_size: 32 }
training:
  data: { micro_batch_size: 1, global_batch_size: 2, seq_length: 16 }
  duration: { train_iters: 6 }
parallelism: { single: { num_gpus: 1, DP: 1 } }
frameworks: { cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] } }
benchmarking: { warmup: { skip_steps: 1 }, runs: { cooldown_seconds: 0 } }
execution:
  cpu:
    executor: kubernetes
    container: { image: "$2" }
    kubernetes: { volumes: [$VOLUMES], memory: $1 }
EOF
}
cat > matrix.toml <<'EOF'
[matrix]
name = "one"
platform = "cpu"
framework = "cmd"
model = "tiny"
parallelism = "single"
repeats = 2
EOF
# What the trainer does before it prints its steps; each is a new measurement.
trainer() {
    : > launches
    { echo 'echo "$TPRIMAT_RUN_ID" >> "$TPRIMAT_PROJECT_DIR/launches"'
      echo "$1"
      echo 'for s in 1 2 3 4 5 6; do echo "{\"event\":\"step\",\"step\":$s,\"step_time_seconds\":0.01,\"loss\":$((9 - s)).5,\"tokens\":32}"; done'
      echo 'echo "{\"event\":\"end\",\"status\":\"ok\",\"steps\":6}"'; } > trainer.sh
}
build() { "$FOLDER/tprimat" build > out 2>&1 || true; }
fails() { echo "FAILED: $1"; cat out; exit 1; }
says() { grep -q -- "$1" out || fails "the build does not say: $1"; }
launched() { [ "$(wc -l < launches)" = "$1" ] || fails "$(wc -l < launches) launches, not $1"; }
ours() { kubectl get "$1" --no-headers --output=name --selector=tprimat.dev/runs; }
pods() { kubectl get pods --no-headers --selector=tprimat.dev/runs --field-selector=status.phase=Running --output=name; }
delete_jobs() { ours jobs | xargs --no-run-if-empty kubectl delete > /dev/null; }
running() { for _ in $(seq 120); do [ -z "$(pods)" ] || return 0; sleep 0.5; done; fails "no pod runs"; }
nothing_left() {
    for _ in $(seq 120); do
        [ -n "$(ours jobs)$(ours secrets)$(ours pods)" ] || break
        sleep 0.5
    done
    [ -z "$(ours jobs)$(ours secrets)$(ours pods)" ] || fails "left: $(ours jobs) $(ours secrets) $(ours pods)"
    left=$(ls -A cache/runs | grep -v -e '^.kubernetes$' -e '^.making.lock$' || true)
    [ -z "$left" ] || fails "left: $left"
    echo "ok: $1"
}

config 256Mi "$IMAGE"
trainer true
build; says "1 of 1 selected cell measured"; launched 2
nothing_left "two runs are two Jobs"

trainer 'sleep 10'
"$FOLDER/tprimat" build > out 2>&1 & tprimat=$!
running; kill -KILL $tprimat; wait $tprimat 2> /dev/null || true
build; says "took up the run"; says "1 of 1 selected cell measured"; launched 2
nothing_left "tprimat killed, its Jobs taken up"

trainer 'sleep 2'
"$FOLDER/tprimat" build > other 2>&1 & other=$!
build; wait $other; says "1 of 1 selected cell measured"; launched 2
nothing_left "two builds at once"

trainer 'sleep 60'
"$FOLDER/tprimat" build > out 2>&1 & tprimat=$!
running; sleep 2
# Whether its two Jobs run at once is the cluster's business.
while kill -0 $tprimat 2> /dev/null; do
    pods | xargs --no-run-if-empty kubectl delete --wait=false > /dev/null
    sleep 1
done
wait $tprimat || true; says "failed (killed)"
nothing_left "a pod deleted"

trainer 'text=x; while true; do text=$text$text; done'
build; says "out of memory: the pod needed more than its limit of 256Mi"
nothing_left "out of memory"

trainer ': image'
config 256Mi "registry.invalid/absent@sha256:${IMAGE##*:}"
timeout --signal=INT 40 "$FOLDER/tprimat" build > out 2>&1 || true
says "registry.invalid/absent@.* cannot be pulled"; says "goes on: the next build takes it up"
delete_jobs; config 256Mi "$IMAGE"; build; says "1 of 1 selected cell measured"; launched 2
nothing_left "an image that is absent"

trainer ': node'
config 100000Gi "$IMAGE"
timeout --signal=INT 15 "$FOLDER/tprimat" build > out 2>&1 || true
says "no node takes it"
delete_jobs; config 256Mi "$IMAGE"; build; says "1 of 1 selected cell measured"
nothing_left "a Job that no node takes"
