#!/usr/bin/env bash
# Runs as Jobs of a real cluster: `make kubernetes`. It takes a few minutes. What it needs:
#
#   KUBECONFIG or ~/.kube/config, whose current context names a cluster and a namespace that Jobs may be made in
#   FOLDER   an empty folder that the pods see under the same path; tprimat is copied into it
#   VOLUMES  the volumes that have it, and whatever the image lacks, as in config.yaml: "team:/home, /data:ro"
#   IMAGE    with its digest; it needs bash and env
#   CHAOS    how often at random tprimat and pods are killed; 5 where nothing is said
#   LOSE     a command that takes the power from the node it is given, and MEND one that gives it back; else no node is lost
#   BLOW     a command that hits the cluster itself, if there is one: it is called now and then, and has to mend what it does
# The runs on two nodes need two nodes that pods may run on.
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
parallelism: { single: { num_gpus: 1, DP: 1 }, two: { num_gpus: 2, nodes: 2, DP: 2 } }
frameworks: { pair: {}, cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] } }
benchmarking: { warmup: { skip_steps: 1 }, runs: { cooldown_seconds: 0 } }
execution:
  cpu:
    executor: kubernetes
    container: { image: "$2" }
    kubernetes: { volumes: [$VOLUMES], memory: $1 }
EOF
}
matrix() { # framework, parallelism, repeats
    printf '[matrix]\nname = "one"\nplatform = "cpu"\nframework = "%s"\nmodel = "tiny"\nparallelism = "%s"\nrepeats = %s\n' "$1" "$2" "${3:-2}" > matrix.toml
}
matrix cmd single
mkdir -p recipes/pair
: > recipes/pair/pair.sh.j2
: > recipes/pair/pair.py.j2
cat > recipes/pair/recipe.toml <<'EOF'
id = "pair"
name = "one process on each node"
vendors = ["cpu"]
optional = ["training.optimizer.learning_rate"]
[launch]
templates = ["pair.sh.j2", "pair.py.j2"]
command = ["bash", "pair.sh"]
reads_job = true
nodes = true
[lock]
facts = ["cores"]
[log]
format = "tprimat"
EOF
# What the trainer does before it prints its steps; each is a new measurement.
trainer() {
    : > launches
    { echo 'echo "$TPRIMAT_RUN_ID" >> "$TPRIMAT_PROJECT_DIR/launches"'
      echo "$1"
      echo 'for s in 1 2 3 4 5 6; do echo "{\"event\":\"step\",\"step\":$s,\"step_time_seconds\":0.01,\"loss\":$((9 - s)).5,\"tokens\":32}"; done'
      echo 'echo "{\"event\":\"end\",\"status\":\"ok\",\"steps\":6}"'; } > trainer.sh
}
# Two nodes that meet as torchrun's do, at the address and the port of rank 0: both wait for each other, then one of them
# prints the steps while the other does what is said here. Where one goes, the other fails.
pair() {
    : > launches
    : > ranks
    cat > recipes/pair/pair.sh.j2 <<EOF
echo "\$TPRIMAT_RUN_ID \$TPRIMAT_NODE_RANK \$TPRIMAT_MASTER_ADDR:\$TPRIMAT_PORT \$TPRIMAT_NODE" >> "\$TPRIMAT_PROJECT_DIR/ranks"
[ "\$TPRIMAT_NODE_RANK" = 1 ] || echo "\$TPRIMAT_RUN_ID" >> "\$TPRIMAT_PROJECT_DIR/launches"
"${PYTHON:-python3}" "\$TPRIMAT_RUN_DIR/pair.py" "$1" || exit
EOF
    cat > recipes/pair/pair.py.j2 <<'EOF'
import json, os, socket, sys, time
rank, place = int(os.environ["TPRIMAT_NODE_RANK"]), (os.environ["TPRIMAT_MASTER_ADDR"], int(os.environ["TPRIMAT_PORT"]))
if rank == 0:
    server = socket.create_server(("", place[1]))
    peer = server.accept()[0]
else:
    for _ in range(100):
        try:
            peer = socket.create_connection(place)
            break
        except ConnectionRefusedError:
            time.sleep(0.1)
for step in range(1, 7):
    time.sleep(float(sys.argv[1]) / 6)
    peer.sendall(b".")
    if peer.recv(1) != b".":
        sys.exit("ConnectionResetError: connection closed by peer")
    if rank == 0:
        print(json.dumps({"event": "step", "step": step, "step_time_seconds": 0.01, "loss": 9.5 - step, "tokens": 32}), flush=True)
if rank == 0:
    print(json.dumps({"event": "end", "status": "ok", "steps": 6}))
EOF
}
build() { "$FOLDER/tprimat" build > out 2>&1 || true; }
fails() { echo "FAILED: $1"; cat out; exit 1; }
says() { grep -q -- "$1" out || fails "the build does not say: $1"; }
launched() { [ "$(wc -l < launches)" = "$1" ] || fails "$(wc -l < launches) launches, not $1"; }
ours() { kubectl get "$1" --no-headers --output=name --selector=tprimat.dev/runs; }
pods() { kubectl get pods --no-headers --selector=tprimat.dev/runs --field-selector=status.phase=Running --output=name; }
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

# As docs/executors.md has it: only a pod knows what pods have.
lock() {
    rm -rf launch
    "$FOLDER/tprimat" show "$1" --launch -o launch > out 2>&1 || fails "no manifest"
    # The first of its Jobs, which gets a Secret of its name.
    sed -e '/^---$/,$d' -e 's/tprimat-run\(-1\)\?/tprimat-lock/' -e "s#command: .*#command: [bash, -c, 'cd $PWD \&\& $FOLDER/tprimat lock --update']#" \
        -e 's#workingDir: .*#workingDir: /#' launch/kubernetes.yaml > lock.yaml
    kubectl create secret generic tprimat-lock --from-literal=environment= > /dev/null
    kubectl create -f lock.yaml > /dev/null
    kubectl wait --for=condition=complete --timeout=120s job/tprimat-lock > /dev/null || { kubectl logs job/tprimat-lock; exit 1; }
    kubectl delete job,secret tprimat-lock > /dev/null
}

config 256Mi "$IMAGE"
trainer true
lock cpu/cmd/tiny/single
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
config 256Mi "$IMAGE"; build; says "replaced the Job"; says "1 of 1 selected cell measured"; launched 2
nothing_left "an image that is absent"

trainer ': node'
config 100000Gi "$IMAGE"
timeout --signal=INT 15 "$FOLDER/tprimat" build > out 2>&1 || true
says "no node takes it"
[ "$(grep -c "waiting for" out)" -le 8 ] || fails "it says too often what it waits for"
config 256Mi "$IMAGE"; build; says "replaced the Job"; says "1 of 1 selected cell measured"; launched 2
nothing_left "a Job that no node takes"

matrix pair two
config 256Mi "$IMAGE"
pair 1
build; says "1 of 1 selected cell measured"; launched 2
[ "$(cut -d' ' -f3 ranks | sort | uniq -c | grep -c '^ *2 ')" = 2 ] || { cat ranks; fails "the ranks of a run do not meet"; }
nothing_left "two runs on two nodes each"

of_node() { pods | { grep -- "-$1-[a-z0-9]*\$" || true; }; }
pair 60
"$FOLDER/tprimat" build > out 2>&1 & tprimat=$!
until [ "$(wc -l < ranks)" -ge 2 ]; do sleep 0.5; done
while kill -0 $tprimat 2> /dev/null; do
    of_node 1 | xargs --no-run-if-empty kubectl delete --wait=false > /dev/null
    sleep 1
done
wait $tprimat || true; says "failed (killed)"; says "told the pod to end"
nothing_left "one pod of two deleted"

pair 60
"$FOLDER/tprimat" build > out 2>&1 & tprimat=$!
until [ "$(wc -l < ranks)" -ge 2 ]; do sleep 0.5; done
while kill -0 $tprimat 2> /dev/null; do
    # No grace: as a node that loses its power.
    of_node 1 | xargs --no-run-if-empty kubectl delete --force --grace-period=0 > /dev/null 2>&1
    sleep 1
done
wait $tprimat || true; says "failed (\(node\|killed\))"
nothing_left "one pod of two lost"

# A node loses its power. It is named, and the record has the nodes where the run was, wherever Kubernetes starts a second pod.
lose() { # cell, the node that is lost, all nodes of the run
    $LOSE "$2"
    wait $tprimat || true; says "failed (node)"; says "node $2 was lost: "
    "$FOLDER/tprimat" show "$1" --attempts > out; says " $3 "
    $MEND "$2"
    kubectl wait --for=condition=Ready --timeout=120s "node/$2" > /dev/null
    nothing_left "node $2 of $3 lost"
}
node_of() { kubectl get "$1" --output=jsonpath='{.spec.nodeName}'; }
if [ -n "${LOSE:-}" ]; then
    matrix cmd single 1
    trainer 'sleep 600'
    "$FOLDER/tprimat" build > out 2>&1 & tprimat=$!
    running; sleep 5; node=$(node_of "$(pods)")
    lose cpu/cmd/tiny/single "$node" "$node"

    matrix pair two 1
    pair 600
    "$FOLDER/tprimat" build > out 2>&1 & tprimat=$!
    until [ "$(wc -l < ranks)" -ge 2 ]; do sleep 0.5; done
    lose cpu/pair/tiny/two "$(node_of "$(of_node 1)")" "$(for pod in $(pods); do node_of "$pod"; echo; done | sort | paste -s -d,)"
fi

# Every launch is in the journal once, whatever is killed; the last build measures what is missing, and no more.
for seed in $(seq "${CHAOS:-5}"); do
    RANDOM=$seed
    if ((RANDOM % 2)); then matrix pair two; pair 3.$seed; else matrix cmd single; trainer "sleep 3.$seed"; fi
    blows=""
    for _ in 1 2 3; do
        # Of what a script starts in the background, bash ignores the interrupt.
        env --default-signal=INT "$FOLDER/tprimat" build > out 2>&1 & tprimat=$!
        sleep $((RANDOM % 8)).$((RANDOM % 10))
        case $((RANDOM % 4)) in
        0) blows+=" tprimat"; kill -KILL $tprimat 2> /dev/null || true ;;
        1) blows+=" interrupt"; kill -INT $tprimat 2> /dev/null || true ;;
        2) blows+=" pod"; pods | shuf -n 1 --random-source=<(yes $seed) | xargs --no-run-if-empty kubectl delete --wait=false > /dev/null 2>&1 || true ;;
        3) blows+=" ${BLOW:+cluster}"; ${BLOW:-true} ;;
        esac
        if ((RANDOM % 2)); then kill -KILL $tprimat 2> /dev/null || true; fi
        wait $tprimat 2> /dev/null || true
    done
    build
    # A run that a deleted pod failed is tried again by a build that is asked to.
    for _ in 1 2 3; do grep -q "1 of 1 selected cell measured\|nothing to do" out || build; done
    grep -q "1 of 1 selected cell measured\|nothing to do" out || fails "seed $seed:$blows"
    # What could not be deleted while the cluster was away is deleted by the next build.
    build
    [ "$(sort launches | uniq -d | wc -l)" = 0 ] || { cat launches; fails "seed $seed:$blows: a run was launched twice"; }
    attempts=$("$FOLDER/tprimat" show "cpu/$(sed -n 's/framework = "\(.*\)"/\1/p' matrix.toml)/tiny/$(sed -n 's/parallelism = "\(.*\)"/\1/p' matrix.toml)" --attempts --json)
    for run in $(cat launches); do
        grep -q "$run" <<< "$attempts" || fails "seed $seed:$blows: run $run is lost"
    done
    nothing_left "seed $seed:$blows; $(wc -l < launches) launches"
done
