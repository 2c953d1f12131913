//! Runs as Jobs, with a stand-in for kubectl that gives the answers which a real cluster (1.20.2) gave:
//! `tests/fixtures/kubernetes`. `make kubernetes` tries the same on a cluster.

use std::{
    fs,
    path::PathBuf,
    process::{Child, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{CONFIG, ONE_RUN, Project, Ran, TRAINER, mock, until};

/// Keeps each Job as a folder of `DB`, and runs what its pod would. What the files of `DB` ask for:
/// `away`, the API server is down; `deaf`, the answer to a `create` is lost; `stuck`, pods stay as the
/// recorded answer of this name has them and nothing runs; `end`, as which answer a pod that ended is
/// shown.
const KUBECTL: &str = r#"
import json, os, re, shutil, signal, subprocess, sys
words = [word for word in sys.argv[1:] if not word.startswith(("--context=", "--namespace="))]
there = lambda name: os.path.exists(os.path.join(DB, name))
read = lambda *path: open(os.path.join(*path)).read()
with open(os.path.join(DB, "asked"), "a") as asked:
    asked.write(" ".join(sys.argv[1:]) + "\n")
def refused(why):
    print(why, file=sys.stderr)
    sys.exit(1)
if there("away"):
    refused("The connection to the server 127.0.0.1:6443 was refused - did you specify the right host or port?")
jobs = [entry for entry in sorted(os.listdir(DB)) if entry.startswith("tprimat-")]
selected = next((word.split("=")[2] for word in words if word.startswith("--selector=tprimat.dev/run=")), None)
def ended(job):
    return there(job + "/exit")
if words[0] == "create":
    _, secret, _, manifest = sys.stdin.read().split("\n", 3)
    secret = json.loads(secret)
    for manifest in manifest.split("\n---\n"):
        job = re.search(r'^  name: "(.*)"', manifest, re.M)[1]
        folder = os.path.join(DB, job)
        if there(job):
            refused(f'Error from server (AlreadyExists): error when creating "STDIN": jobs.batch "{job}" already exists')
        os.mkdir(folder)
        for name, text in [("run", secret["metadata"]["labels"]["tprimat.dev/run"]), ("manifest", manifest), ("environment", secret["stringData"]["environment"])]:
            open(os.path.join(folder, name), "w").write(text)
        if not there("stuck"):
            command = json.loads(re.search(r"command: (\[.*\])", manifest)[1])
            script = 'echo $$ > "$0/pid"; "$@"; echo $? > "$0/exit"'
            subprocess.Popen(["bash", "-c", script, folder, *command], start_new_session=True, stdin=subprocess.DEVNULL,
                stdout=open(os.path.join(folder, "log"), "w"), stderr=subprocess.STDOUT,
                env={"PATH": os.environ["PATH"], "TPRIMAT_ENVIRONMENT": os.path.join(folder, "environment"),
                    "TPRIMAT_NODE": "node7", "TPRIMAT_ADDRESS": "127.0.0.1", "OF_IMAGE": "1"})
    if there("deaf"):
        refused("Unable to connect to the server: net/http: TLS handshake timeout")
elif words[:2] == ["get", "jobs,pods"]:
    items = []
    for job in jobs:
        answer = "running" if not ended(job) else read(DB, "end").strip() if there("end") else "complete"
        answer = read(DB, "stuck").strip() if there("stuck") else answer
        text = read(ANSWERS, answer.replace("complete", "out-of-memory") + ".json")
        image = re.search(r'image: (".*")', read(DB, job, "manifest"))[1]
        text = re.sub(r'"image": "registry.*"', '"image": ' + image, text)
        if answer == "complete":
            text = text.replace("OOMKilled", "Completed")
        items += json.loads(text.replace("NAME", job).replace("RUN", read(DB, job, "run")))["items"]
    print(json.dumps({"items": items}))
elif words[:2] == ["get", "node"]:
    if not there("node"):
        refused(f'Error from server (Forbidden): nodes "{words[2]}" is forbidden: User "limited" cannot get resource "nodes" in API group "" at the cluster scope')
    print(read(ANSWERS, read(DB, "node").strip() + ".json"))
elif words[0] == "get":
    print('{"items": []}')
elif words[0] == "delete":
    for job in jobs:
        if job in words or read(DB, job, "run") == selected:
            if not ended(job) and there(job + "/pid"):
                subprocess.run(["pkill", "-TERM", "--session", read(DB, job, "pid").strip(), "--full", "__run"])
                if job in words:
                    continue
            shutil.rmtree(os.path.join(DB, job))
"#;

struct Cluster(Project);

impl Cluster {
    fn new() -> Self {
        let project = Project::new(ONE_RUN);
        let wait = "env > \"$TPRIMAT_PROJECT_DIR/seen\"; until [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.05; done\n";
        project.write("trainer.sh", &format!("{wait}{TRAINER}"));
        let cluster = Self(project);
        fs::create_dir_all(cluster.db("")).unwrap();
        let answers = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/kubernetes");
        let (program, db) = (cluster.0.folder().join("bin/kubectl"), cluster.db(""));
        let head = format!("#!/usr/bin/env python3\nDB = {db:?}\nANSWERS = {answers:?}\n");
        mock::program(&program, format!("{head}{KUBECTL}"));
        cluster.settings("");
        // As in a pod, which pins what its node has.
        cluster.run(&["lock", "--update"]).ends_with(0);
        cluster
    }

    fn settings(&self, more: &str) {
        let text = format!(
            "{CONFIG}execution:\n  cpu:\n    executor: kubernetes\n    container: {{ image: \"lab/cmd@sha256:{DIGEST}\" }}\n    \
             kubernetes: {{ context: lab, volumes: [/, \"data:/data:ro\"]{more} }}\n"
        );
        self.0.write("config.yaml", &text);
    }

    fn db(&self, name: &str) -> PathBuf {
        self.0.folder().join("db").join(name)
    }

    fn set(&self, name: &str, text: &str) {
        fs::write(self.db(name), text).unwrap();
    }

    fn unset(&self, name: &str) {
        fs::remove_file(self.db(name)).unwrap();
    }

    fn jobs(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.db("")).unwrap().flatten();
        let paths = entries.map(|entry| entry.path());
        paths.filter(|path| path.is_dir()).collect()
    }

    fn asked(&self, what: &str) -> usize {
        let asked = fs::read_to_string(self.db("asked")).unwrap();
        asked.matches(what).count()
    }

    fn command(&self, arguments: &[&str]) -> std::process::Command {
        let mut command = self.0.tprimat(arguments);
        let (own, path) = (self.0.folder().join("bin"), std::env::var("PATH").unwrap());
        command
            .env("PATH", format!("{}:{path}", own.display()))
            .env("HF_TOKEN", "hf_secret")
            .current_dir(self.0.root());
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        self.command(arguments).output().unwrap().into()
    }

    /// A build whose trainer is up.
    fn started(&self) -> Child {
        let mut build = self.command(&["build"]);
        let build = build.stdout(Stdio::null()).stderr(Stdio::piped());
        let build = build.spawn().unwrap();
        until("the trainer runs in its pod", || {
            self.0.path("seen").exists()
        });
        build
    }

    fn has_left_nothing(&self) {
        assert!(self.jobs().is_empty(), "{:?}", self.jobs());
        let runs = fs::read_dir(self.0.path("cache/runs")).unwrap().flatten();
        let names = runs.map(|entry| entry.file_name().into_string().unwrap());
        let mut left = names.filter(|name| ![".kubernetes", ".making.lock"].contains(&&**name));
        assert_eq!(left.next(), None);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        for (pid, _) in self.0.processes() {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
}

#[test]
fn a_run_is_one_job_and_nothing_of_it_is_left_nor_of_a_secret_shown() {
    let cluster = Cluster::new();
    let build = cluster.started();
    let job = &cluster.jobs()[0];
    let manifest = fs::read_to_string(job.join("manifest")).unwrap();
    let shown = cluster.run(&["show", "cpu/cmd/tiny/single", "--launch"]);
    for text in [&manifest, &shown.stdout] {
        assert!(
            text.contains(&format!("image: \"lab/cmd@sha256:{DIGEST}\""))
                && !text.contains("hf_secret"),
            "{text}"
        );
    }
    let seen = cluster.0.read("seen");
    assert!(
        seen.contains("HF_TOKEN=hf_secret") && seen.contains("OF_IMAGE=1"),
        "{seen}"
    );
    let spec = cluster
        .0
        .path("cache/runs")
        .join(fs::read_to_string(job.join("run")).unwrap());
    let spec = fs::read_to_string(spec.join("spec.json")).unwrap();
    assert!(!spec.contains("hf_secret"), "{spec}");
    cluster.0.write("go", "");
    Ran::from(build.wait_with_output().unwrap()).ends_with(0);
    assert_eq!((cluster.asked("create"), cluster.0.launches()), (1, 1));
    assert_eq!(cluster.asked("--context=lab "), cluster.asked("\n"));
    cluster.has_left_nothing();
}

#[test]
fn a_job_is_taken_up_after_its_tprimat_was_killed_and_made_once_where_an_answer_was_lost() {
    let cluster = Cluster::new();
    cluster.set("deaf", "");
    let mut build = cluster.started();
    build.kill().unwrap();
    build.wait().unwrap();
    cluster.0.write("go", "");
    // The cluster is away while the run is taken in, and when the Job is to be deleted.
    until("the run has ended", || {
        cluster.jobs()[0].join("exit").exists()
    });
    cluster.set("away", "");
    let ran = cluster.run(&["build"]).ends_with(0);
    assert!(
        ran.stderr
            .contains("took in a run that an earlier build left"),
        "{}",
        ran.stderr
    );
    assert_eq!((cluster.jobs().len(), cluster.0.launches()), (1, 1));
    cluster.unset("away");
    cluster.run(&["build"]).ends_with(0);
    assert_eq!((cluster.asked("create"), cluster.0.launches()), (1, 1));
    cluster.has_left_nothing();
}

#[test]
fn what_the_cluster_did_to_a_run_is_its_failure_and_not_the_trainers() {
    let cluster = Cluster::new();
    cluster
        .0
        .write("trainer.sh", "echo a step; kill -KILL $$\n");
    cluster.set("end", "out-of-memory");
    let ran = cluster.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr.contains("failed (killed)")
            && ran.stderr.contains("more than its limit of 256Mi"),
        "{}",
        ran.stderr
    );
    cluster.has_left_nothing();
}

#[test]
fn a_job_that_waits_says_for_what_and_ctrl_c_leaves_or_deletes_it() {
    for (cancels, left) in [("", 1), (", cancel_on_interrupt: true", 0)] {
        let cluster = Cluster::new();
        cluster.settings(cancels);
        cluster.set("stuck", "no-node");
        let mut build = cluster.command(&["build"]);
        let build = build
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("it was looked at", || {
            cluster.db("asked").exists() && cluster.asked("get jobs,pods") > 2
        });
        kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGINT).unwrap();
        let ran: Ran = build.wait_with_output().unwrap().into();
        assert_eq!(ran.code, Some(130), "{}", ran.stderr);
        let why = "no node takes it: 0/1 nodes are available: 1 Insufficient memory.";
        assert!(ran.stderr.contains(why), "{}", ran.stderr);
        assert_eq!(cluster.jobs().len(), left, "{}", ran.stderr);
        assert_eq!(
            ran.stderr
                .contains("`kubectl --context=lab delete job tprimat-"),
            left == 1
        );
        // A Job that was deleted before it ran is no failure of the run: the next build makes it.
        for job in cluster.jobs() {
            fs::remove_dir_all(job).unwrap();
        }
        cluster.unset("stuck");
        cluster.0.write("go", "");
        let ran = cluster.run(&["build"]).ends_with(0);
        assert!(!ran.stderr.contains("killed"), "{}", ran.stderr);
        assert_eq!(cluster.0.launches(), 1);
        cluster.has_left_nothing();
    }
}

#[test]
fn an_image_that_stays_away_ends_the_wait_and_no_run_was_made() {
    let cluster = Cluster::new();
    // It was recorded long ago, so the wait for it is over.
    cluster.set("stuck", "no-image");
    let ran = cluster.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr.contains("cannot be pulled (ErrImagePull: "),
        "{}",
        ran.stderr
    );
    assert!(ran.stderr.contains("no run was made"), "{}", ran.stderr);
    cluster.has_left_nothing();
}

#[test]
fn a_run_that_needs_an_image_which_stayed_away_from_another_one_waits_no_more() {
    let cluster = Cluster::new();
    cluster.0.edit("matrix.toml", "repeats = 1", "repeats = 3");
    cluster.set("stuck", "no-image");
    let ran = cluster.run(&["build", "--jobs", "1"]).ends_with(1);
    assert_eq!(cluster.asked("create"), 1, "{}", ran.stderr);
    let found = "no Job was made, because another run of this build found that the image ";
    assert!(ran.stderr.contains(found), "{}", ran.stderr);
    cluster.has_left_nothing();
}

#[test]
fn a_job_that_waits_is_made_anew_once_config_asks_for_something_else_and_one_that_runs_is_not() {
    let cluster = Cluster::new();
    let killed = |mut build: Child| {
        build.kill().unwrap();
        build.wait().unwrap();
    };
    cluster.settings(", memory: 100Ti");
    cluster.set("stuck", "no-node");
    // The second build asks for the same.
    for looks in [3, 6] {
        let build = cluster.command(&["build"]).spawn().unwrap();
        until("the Job waits", || {
            cluster.db("asked").exists() && cluster.asked("get jobs,pods") >= looks
        });
        killed(build);
        assert_eq!(cluster.asked("create"), 1);
    }
    cluster.settings(", memory: 1Gi");
    cluster.unset("stuck");
    let build = cluster.started();
    let jobs = cluster.jobs();
    assert_eq!((jobs.len(), cluster.asked("create")), (1, 2));
    let manifest = fs::read_to_string(jobs[0].join("manifest")).unwrap();
    assert!(manifest.contains("1Gi"), "{manifest}");
    killed(build);
    cluster.settings(", memory: 2Gi");
    cluster.0.write("go", "");
    let ran = cluster.run(&["build"]).ends_with(0);
    assert!(!ran.stderr.contains("replaced"), "{}", ran.stderr);
    assert_eq!((cluster.asked("create"), cluster.0.launches()), (2, 1));
    cluster.has_left_nothing();
}

#[test]
fn a_template_of_the_project_may_add_and_may_not_drop_what_makes_a_run_single() {
    let cluster = Cluster::new();
    let shipped = fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/templates/kubernetes.yaml.j2"
    ))
    .unwrap();
    let show = || cluster.run(&["show", "cpu/cmd/tiny/single", "--launch"]);
    let own = |text: &str| {
        cluster.0.write("templates/kubernetes.yaml.j2", text);
    };
    own(&shipped.replace(
        "restartPolicy: Never",
        "restartPolicy: Never\n      hostNetwork: true",
    ));
    assert!(show().ends_with(0).stdout.contains("hostNetwork: true"));
    own(&shipped.replace("backoffLimit: 0", "backoffLimit: 3"));
    let refused = show().ends_with(2);
    assert!(
        refused.stderr.contains("spec.backoffLimit has to be 0"),
        "{}",
        refused.stderr
    );
}

#[test]
fn what_no_job_could_use_is_named_by_check_and_a_build_waits_for_no_cluster_in_vain() {
    let cluster = Cluster::new();
    let build = || cluster.run(&["build"]).ends_with(1);
    cluster.set("away", "");
    let ran = build();
    assert!(
        ran.stderr.contains("`kubectl --context=lab get jobs`")
            && ran.stderr.contains("6443 was refused"),
        "{}",
        ran.stderr
    );
    cluster.unset("away");
    cluster.settings(", memory: 512GB");
    let checked = cluster.run(&["check"]).ends_with(2);
    assert!(
        checked.stderr.contains("`512GB` is not a quantity"),
        "{}",
        checked.stderr
    );
    cluster.settings("");
    cluster
        .0
        .edit("config.yaml", &format!("@sha256:{DIGEST}"), ":1");
    let checked = cluster.run(&["check"]).ends_with(2);
    assert!(
        checked.stderr.contains("needs its digest"),
        "{}",
        checked.stderr
    );
    cluster.settings("");
    // What this host has says nothing of the nodes.
    fs::remove_file(cluster.0.path("tprimat.lock")).unwrap();
    let ran = build();
    assert!(ran.stderr.contains("once in a pod"), "{}", ran.stderr);
    assert!(!cluster.0.path("tprimat.lock").exists() && cluster.jobs().is_empty());
}

const DIGEST: &str = "00000000000000000000000000000000000000000000000000000000000000ff";

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

/// A cluster whose cell runs `first` on node 0 and `second` on node 1.
fn pair(first: &str, second: &str) -> Cluster {
    let cluster = Cluster::new();
    let project = &cluster.0;
    project.write("recipes/pair/recipe.toml", RECIPE);
    let both = format!(
        "echo \"$TPRIMAT_NODE_RANK $TPRIMAT_MASTER_ADDR:$TPRIMAT_PORT\" >> \"$TPRIMAT_PROJECT_DIR/ranks\"\n\
         if [ \"$TPRIMAT_NODE_RANK\" = 0 ]; then\n{first}\nelse\n{second}\nfi\n"
    );
    project.write("recipes/pair/pair.sh.j2", &both);
    project.edit("matrix.toml", "\"cmd\"", "\"pair\"");
    project.edit("matrix.toml", "\"single\"", "\"two\"");
    let two = "  two: { num_gpus: 2, nodes: 2, DP: 2 }\nframeworks:\n  pair: {}\n";
    project.edit("config.yaml", "frameworks:\n", two);
    cluster.run(&["lock", "--update"]).ends_with(0);
    cluster
}

#[test]
fn a_run_on_two_nodes_is_two_jobs_whose_ranks_meet_and_of_which_nothing_is_left() {
    let second = "echo \"the second node says $HF_TOKEN\"";
    let cluster = pair(TRAINER, second);
    let shown = cluster.run(&["show", "cpu/pair/tiny/two", "--launch"]);
    for part in ["\"pod-1\"", "\"pod\"", "podAntiAffinity"] {
        assert!(shown.stdout.contains(part), "{}", shown.stdout);
    }
    cluster.run(&["build"]).ends_with(0);
    let ranks = cluster.0.read("ranks");
    let mut ranks: Vec<&str> = ranks.lines().collect();
    ranks.sort_unstable();
    let [first, second] = ranks[..] else {
        panic!("one process a node: {ranks:?}")
    };
    assert!(first.starts_with("0 127.0.0.1:"), "{first}");
    assert_eq!(first.strip_prefix("0 "), second.strip_prefix("1 "));
    assert_eq!((cluster.asked("create"), cluster.0.launches()), (1, 1));
    let log = cluster.run(&["logs", "cpu/pair/tiny/two", "--node", "1"]);
    assert!(
        log.stdout.contains("the second node says ****"),
        "{}",
        log.stdout
    );
    cluster.has_left_nothing();
}

#[test]
fn the_loss_of_one_pod_ends_the_others_and_is_told_as_what_it_is() {
    let waits = "echo a step; touch \"$TPRIMAT_PROJECT_DIR/seen\"; sleep 100 & wait";
    for (signal, class) in [
        (Signal::SIGTERM, "failed (killed)"),
        (Signal::SIGKILL, "failed (node)"),
    ] {
        let cluster = pair(
            "echo a step; sleep 0.5; exec 3<>/dev/tcp/127.0.0.1/1",
            waits,
        );
        cluster.0.edit(
            "recipes/pair/pair.sh.j2",
            "sleep 0.5;",
            "until [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.05; done;",
        );
        let build = cluster.started();
        let of_node = |(_, line): &(i32, String)| {
            line.trim_end().ends_with("pod-1") && !line.starts_with("bash")
        };
        let (pid, _) = cluster.0.processes().into_iter().find(of_node).unwrap();
        kill(Pid::from_raw(pid), signal).unwrap();
        cluster.0.write("go", "");
        let ran = Ran::from(build.wait_with_output().unwrap()).ends_with(1);
        assert!(ran.stderr.contains(class), "{}", ran.stderr);
        let is_told = ran.stderr.contains("Kubernetes told the pod to end");
        assert_eq!(is_told, signal == Signal::SIGTERM, "{}", ran.stderr);
        cluster.has_left_nothing();
    }
}

#[test]
fn a_lost_node_is_told_by_its_name_and_recorded_is_where_the_run_was() {
    // A second pod failed on another node; the caller may not look at nodes; the node is gone with its pod.
    for (pods, node, told) in [
        (
            "node-lost-replaced",
            "node-not-ready",
            "node n2 was lost: Kubelet stopped posting node status.",
        ),
        ("node-lost-replaced", "", "node n2 was lost\n"),
        (
            "supervisor-killed",
            "node-not-ready",
            "node node7 was lost: Kubelet stopped posting node status.",
        ),
        ("supervisor-killed", "", "left no word of how its run ended"),
    ] {
        let cluster = Cluster::new();
        let build = cluster.started();
        cluster.set("end", pods);
        if !node.is_empty() {
            cluster.set("node", node);
        }
        let is_supervisor = |(_, line): &(i32, String)| {
            line.trim_end().ends_with(" pod") && !line.starts_with("bash")
        };
        let (pid, _) = cluster
            .0
            .processes()
            .into_iter()
            .find(is_supervisor)
            .unwrap();
        kill(Pid::from_raw(pid), Signal::SIGKILL).unwrap();
        let ran = Ran::from(build.wait_with_output().unwrap()).ends_with(1);
        assert!(
            ran.stderr.contains("failed (node)") && ran.stderr.contains(told),
            "{}",
            ran.stderr
        );
        let attempts = cluster.run(&["show", "cpu/cmd/tiny/single", "--attempts"]);
        assert!(attempts.stdout.contains(" node7 "), "{}", attempts.stdout);
        cluster.has_left_nothing();
    }
}

#[test]
fn folders_that_no_volume_has_are_named_before_anything_is_made() {
    let cluster = Cluster::new();
    cluster
        .0
        .edit("config.yaml", "volumes: [/,", "volumes: [/elsewhere,");
    let checked = cluster.run(&["check"]);
    for ran in [checked, cluster.run(&["build"]).ends_with(1)] {
        assert!(
            ran.stderr.contains("no volume of the pods has "),
            "{}",
            ran.stderr
        );
    }
    assert!(cluster.jobs().is_empty());
}
