//! One run on both nodes of the test's cluster.

use std::{fs, process::Stdio};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use tprimat::cache::TaskKind;

use crate::{
    eventually,
    fixtures::slurm::Cluster,
    support::{CONFIG, Ran, TRAINER},
};

const RECIPE: &str = r#"id = "pair"
name = "A stub on several nodes"
vendors = ["cpu"]

[launch]
templates = ["pair.sh.j2"]
command = ["bash", "pair.sh"]
reads_job = true
nodes = true

[lock]
facts = ["cores"]

[log]
format = "tprimat"
"#;

const PAIR: &str = r#"[matrix]
name = "pair"
platform = "cpu"
framework = "pair"
model = "tiny"
parallelism = "two"
repeats = 1
"#;

/// A cluster whose cell runs `first` on node 0 and `second` on node 1.
fn pair(first: &str, second: &str) -> Cluster {
    let cluster = Cluster::new(TRAINER);
    let project = &cluster.project;
    project.write("matrix.toml", PAIR);
    project.write("recipes/pair/recipe.toml", RECIPE);
    let both = format!(
        "echo \"$TPRIMAT_NODE_RANK/{{{{ job.parallelism.num_nodes }}}} $TPRIMAT_MASTER_ADDR:$TPRIMAT_PORT\" >> \"$TPRIMAT_PROJECT_DIR/ranks\"\n\
         if [ \"$TPRIMAT_NODE_RANK\" = 0 ]; then\n{first}\nelse\n{second}\nfi\n"
    );
    // Bash's `{#` would open a comment of the template.
    project.write("recipes/pair/pair.sh.j2", &both);
    configure(&cluster, "");
    cluster
}

/// `more`: further keys of `execution.cpu.slurm`.
fn configure(cluster: &Cluster, more: &str) {
    let config = CONFIG
        .replace(
            "  single: { num_gpus: 1, DP: 1 }\n",
            "  single: { num_gpus: 1, DP: 1 }\n  two: { num_gpus: 2, DP: 2 }\n",
        )
        .replace("frameworks:\n", "frameworks:\n  pair: {}\n");
    let execution = format!("execution:\n  cpu: {{ executor: slurm, slurm: {{ {more} }} }}\n");
    cluster
        .project
        .write("config.yaml", &format!("{config}{execution}"));
}

const CELL: &str = "cpu/pair/tiny/two";

fn is_clean(cluster: &Cluster) {
    let left: Vec<_> = cluster.project.processes();
    let left: Vec<_> = left
        .iter()
        .filter(|(_, line)| line.contains("pair.sh") || line.contains("__run"))
        .collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_run_on_two_nodes_is_one_job_whose_ranks_meet_and_whose_logs_are_kept() {
    let cluster = pair(TRAINER, "echo \"the second node says $HF_TOKEN\"");
    cluster.run(&["build"]).ends_with(0);
    let ranks = cluster.project.read("ranks");
    let mut ranks: Vec<&str> = ranks.lines().collect();
    ranks.sort_unstable();
    let [first, second] = ranks[..] else {
        panic!("one process a node: {ranks:?}")
    };
    assert_eq!(
        first.strip_prefix("0/2 "),
        second.strip_prefix("1/2 "),
        "they meet at one place: {ranks:?}"
    );
    assert_eq!(cluster.jobs().len(), 1);
    assert!(
        cluster
            .says("squeue", &["--noheader", "--states=all", "--format=%D %N"])
            .contains("2 n[1-2]")
    );
    let log = cluster
        .run(&["logs", CELL, "--node", "1"])
        .ends_with(0)
        .stdout;
    assert!(
        log.starts_with("the second node says ****") && !log.contains("hf_not"),
        "{log}"
    );
    let attempts = cluster
        .run(&["show", "--attempts", CELL, "--json"])
        .ends_with(0);
    assert!(
        attempts.stdout.contains("\"n1,n2\""),
        "the unit of replication is the set of nodes: {}",
        attempts.stdout
    );
    assert!(
        cluster
            .run(&["build"])
            .ends_with(0)
            .stderr
            .contains("nothing to do")
    );
    let here = cluster.run(&["plan", "--executor", "local"]).stdout;
    assert!(!here.contains("stale"), "it serves everybody: {here}");
}

#[test]
fn where_the_last_rank_prints_the_steps_the_first_one_still_states_the_settings() {
    // As Megatron does: settings by rank 0, steps by the last rank.
    let settings = r#"echo '{"event":"start","schema":"tprimat.events/1","trainer":"stub","effective":{"seq_length":16,"global_batch_size":2}}'"#;
    let steps = r#"for step in 1 2 3 4 5 6; do
    sleep 0.3
    echo '{"event":"step","step":'$step',"step_time_seconds":0.3,"loss":1.5,"tokens":32}'
done
echo '{"event":"end","status":"ok","steps":6}'"#;
    let cluster = pair(settings, steps);
    cluster.project.edit(
        "recipes/pair/recipe.toml",
        "nodes = true",
        "nodes = \"last\"",
    );
    cluster.run(&["build"]).ends_with(0);
    let log = |node: &str| {
        let ran = cluster.run(&["logs", CELL, "--node", node]);
        ran.ends_with(0).stdout
    };
    assert!(log("0").contains("\"step\":6"), "{}", log("0"));
    assert!(log("1").contains("effective"), "{}", log("1"));
    let shown = cluster.run(&["show", &format!("{CELL}#1"), "--json"]);
    let result: serde_json::Value = serde_json::from_str(&shown.ends_with(0).stdout).unwrap();
    let trace = &result["trace"];
    assert_eq!(trace["effective"]["seq_length"], 16, "{result}");
    let ends: Vec<f64> = trace["steps"]
        .as_array()
        .unwrap()
        .iter()
        .filter_map(|step| step["ended_at"].as_f64())
        .collect();
    assert!(
        ends.len() == 6 && ends.windows(2).all(|pair| pair[1] - pair[0] > 0.1),
        "each step is dated by its own line: {ends:?}"
    );
    let ranks = cluster.project.read("ranks");
    let places = ranks.lines().filter_map(|line| line.split_once(' '));
    let places: Vec<&str> = places.map(|(_, place)| place).collect();
    assert!(
        places.len() == 2 && places[0] == places[1],
        "they meet at one place: {ranks}"
    );
    // Half of what a result is made from makes none.
    let run = format!("{CELL}#1");
    cluster.project.lose_result(&run).lose_summary(CELL);
    let log = cluster
        .project
        .output(TaskKind::Train, &format!("train {run}"), "log.node-1");
    cluster.project.lose(log);
    let plan = cluster.run(&["plan"]).ends_with(0).stdout;
    assert!(
        plan.contains("`log.node-1` is gone from the cache and needed"),
        "{plan}"
    );
}

#[test]
fn the_cause_of_a_failure_is_found_in_the_log_of_any_node() {
    let out_of_memory =
        "echo 'torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB'; exit 1";
    let gone = "sleep 1; echo 'RuntimeError: [gloo] Connection closed by peer'; exit 1";
    let cluster = pair(gone, out_of_memory);
    let ran = cluster.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr.contains("oom") && ran.stderr.contains("node 1: "),
        "{}",
        ran.stderr
    );
    is_clean(&cluster);
}

#[test]
fn a_run_on_two_nodes_leaves_nothing_when_its_job_is_cancelled() {
    // A loop, since Slurm may end `sleep` before the shell hears of its own end.
    let wait = "trap 'echo asked >> \"$TPRIMAT_PROJECT_DIR/asked\"; exit 1' TERM\necho up >> \"$TPRIMAT_PROJECT_DIR/up\"; while :; do sleep 9 & wait; done";
    let cluster = pair(wait, wait);
    configure(&cluster, "cancel_on_interrupt: true");
    let build = cluster
        .tprimat(&["build"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("both nodes are up", 40, || {
        fs::read_to_string(cluster.project.path("up")).is_ok_and(|up| up.lines().count() == 2)
    });
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGINT).unwrap();
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    eventually("no job is left", 20, || {
        cluster.says("squeue", &["--noheader"]).trim().is_empty()
    });
    assert_eq!(
        cluster.project.read("asked").lines().count(),
        2,
        "each node ends with grace"
    );
    is_clean(&cluster);
}

/// A trainer that has said all there is to say, is up, and is deaf to its end.
fn deaf() -> String {
    format!(
        "{TRAINER}\ntrap '' TERM\necho up > \"$TPRIMAT_PROJECT_DIR/up\"\nwhile :; do sleep 1; done"
    )
}

#[test]
fn a_job_that_somebody_else_cancels_is_told_as_cancelled_and_is_no_measurement() {
    let cluster = pair(
        &deaf(),
        "echo $$ > \"$TPRIMAT_PROJECT_DIR/second.new\"; mv \"$TPRIMAT_PROJECT_DIR/second\"{.new,}",
    );
    let build = cluster
        .tprimat(&["build"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually(
        "the first node has said all, and the second one has ended",
        40,
        || {
            let second = cluster.project.path("second");
            let has_ended = || {
                fs::read_to_string(&second)
                    .is_ok_and(|pid| !std::path::Path::new("/proc").join(pid.trim()).exists())
            };
            cluster.project.path("up").exists() && has_ended()
        },
    );
    let id = cluster.jobs()[0].split(' ').next().unwrap().to_owned();
    cluster.says("scancel", &[&id]);
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let attempts = cluster.run(&["show", "--attempts", CELL]).stdout;
    assert!(
        attempts.contains("cancelled") && !attempts.contains(" ok"),
        "{attempts}"
    );
    eventually("nothing of the run is left", 20, || {
        let left = cluster.project.processes();
        left.iter()
            .all(|(_, line)| !line.contains("pair.sh") && !line.contains("__run"))
    });
}

#[test]
fn what_the_caller_wants_of_srun_does_not_keep_the_nodes_from_being_heard() {
    let cluster = pair(TRAINER, "true");
    let mut build = cluster.tprimat(&["build"]);
    for (name, value) in [
        ("SLURM_LABELIO", "1"),
        ("SLURM_UNBUFFEREDIO", "1"),
        ("SLURM_STDINMODE", "none"),
        ("SLURM_STDOUTMODE", "none"),
        ("SLURM_WAIT", "1"),
        ("SLURM_KILL_BAD_EXIT", "1"),
    ] {
        build.env(name, value);
    }
    let ran: Ran = build.output().unwrap().into();
    ran.ends_with(0);
}

#[test]
fn a_supervisor_that_is_killed_ends_the_run_on_all_nodes() {
    let wait = "echo up >> \"$TPRIMAT_PROJECT_DIR/up\"; while :; do sleep 1; done";
    let cluster = pair(wait, wait);
    let build = cluster
        .tprimat(&["build"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    eventually("both nodes are up", 40, || {
        fs::read_to_string(cluster.project.path("up")).is_ok_and(|up| up.lines().count() == 2)
    });
    let processes = cluster.project.processes();
    let (pid, _) = processes
        .iter()
        .find(|(pid, line)| {
            line.contains("__run")
                && !line.contains("srun")
                && fs::read_to_string(format!("/proc/{pid}/environ"))
                    .is_ok_and(|environment| environment.contains("SLURM_NODEID=1"))
        })
        .unwrap_or_else(|| panic!("{processes:?}"));
    kill(Pid::from_raw(*pid), Signal::SIGKILL).unwrap();
    // By itself: neither a person nor Slurm's time limit ends it.
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    let attempts = cluster.run(&["show", "--attempts", CELL]).stdout;
    // Where the host is busy, Slurm itself takes a node that does not answer for 5 s for a failed one.
    let why = ["left no word", "ended: node fail"];
    assert!(
        attempts.contains("failed (node: ") && why.iter().any(|why| attempts.contains(why)),
        "{attempts}"
    );
    is_clean(&cluster);
}

#[test]
fn a_node_that_differs_from_the_lock_keeps_all_nodes_from_running() {
    let cluster = pair(TRAINER, "true");
    cluster.run(&["build"]).ends_with(0);
    let lock = cluster.project.read("tprimat.lock");
    let cores = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .expect("cores are pinned");
    cluster.project.edit("tprimat.lock", cores, "cores = 4096");
    let ran = cluster.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr.contains("differs from tprimat.lock") && ran.stderr.contains("4096"),
        "{}",
        ran.stderr
    );
    assert_eq!(cluster.project.launches(), 1);
}

#[test]
fn what_cannot_have_several_nodes_says_why() {
    let cluster = pair(TRAINER, "true");
    let waits = cluster.run(&["plan", "--executor", "local"]);
    assert!(
        waits.stdout.contains("needs 2 nodes") && waits.stdout.contains("--executor slurm"),
        "{}",
        waits.stdout
    );
    cluster
        .project
        .edit("recipes/pair/recipe.toml", "nodes = true\n", "");
    let refused = cluster.run(&["plan"]);
    assert!(
        refused.stdout.contains("nodes = true"),
        "{}",
        refused.stdout
    );
    cluster.project.edit(
        "config.yaml",
        "two: { num_gpus: 2, DP: 2 }",
        "two: { num_gpus: 2, DP: 2, nodes: 1 }",
    );
    let too_many = cluster.run(&["plan"]);
    assert!(
        too_many.stdout.contains("2 GPUs on 1 nodes"),
        "{}",
        too_many.stdout
    );
}

/// The Python of the trainers, which the tests of the launchers need as well.
fn python() -> String {
    std::env::var("TPRIMAT_PYTHON").expect(
        "set TPRIMAT_PYTHON to a Python that has recipes/tran/requirements.cpu.txt installed",
    )
}

/// Losses of all steps of a cell's log.
fn losses(cluster: &Cluster, cell: &str) -> Vec<f64> {
    let log = cluster.run(&["logs", cell]).ends_with(0).stdout;
    let events = log
        .lines()
        .filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    events.filter_map(|event| event["loss"].as_f64()).collect()
}

/// `fsdp` and `tran` need what the quickstart installs. NODES_FRAMEWORKS="fsdp tran deep" asks for
/// DeepSpeed as well, which $TPRIMAT_PYTHON must then have.
fn frameworks() -> Vec<String> {
    let asked = std::env::var("NODES_FRAMEWORKS").unwrap_or_else(|_| "fsdp tran".into());
    asked.split_whitespace().map(str::to_owned).collect()
}

#[test]
fn our_trainers_compute_the_same_on_two_nodes_as_with_two_processes_on_one() {
    let cluster = Cluster::new(TRAINER);
    let names = frameworks();
    let list = format!("{names:?}");
    let config = CONFIG
        .replace("num_gpus: 1 }\nmodels", "num_gpus: 2 }\nmodels")
        .replace(
            "    vocab_size: 32\n",
            "    vocab_size: 32\n    rope_theta: 10000.0\n    norm_eps: 1.0e-5\n",
        )
        .replace(
            "  single: { num_gpus: 1, DP: 1 }\n",
            "  here: { num_gpus: 2, DP: 2 }\n  two: { num_gpus: 2, DP: 2, nodes: 2 }\n",
        )
        .replace(
            "  cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] }\n",
            "  fsdp: {}\n  tran: {}\n  deep: {}\n",
        );
    let execution = "execution:\n  cpu: { executor: slurm, slurm: { max_jobs: 1 } }\n";
    cluster.project.write(
        "config.yaml",
        &format!("{config}{execution}paths: {{ python: {} }}\n", python()),
    );
    cluster.project.write(
        "matrix.toml",
        &format!(
            "[matrix]\nname = \"two\"\nplatform = \"cpu\"\nframework = {list}\nmodel = \"tiny\"\nparallelism = [\"here\", \"two\"]\nrepeats = 1\n"
        ),
    );
    cluster.run(&["build"]).ends_with(0);
    for name in names {
        let [here, two] =
            ["here", "two"].map(|s| losses(&cluster, &format!("cpu/{name}/tiny/{s}")));
        assert_eq!(here.len(), 6, "{name}");
        assert_eq!(here, two, "{name}");
    }
}
