//! Batch jobs when the cluster is slow, forgetful or deaf, and images that are files, with
//! stand-ins for the commands of Slurm, pyxis and Apptainer: the real Slurm of `tests/services`
//! does none of this when asked to.

mod nodes;

use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    time::{Duration, Instant},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::support::{CONFIG, ONE_RUN, Project, Ran, TRAINER, mock, until};

/// Registers a job in `$DB`, and runs its command there and then. What the files of `$DB` ask for:
/// `deaf`, the answer to the first submission is lost, and squeue does not show that job for a
/// while; `late`, how many seconds after its end the job's files are seen; `limit`, how many jobs may
/// be there at once; as many times as `refuse-sbatch` has lines, a refusal; `final`, the state in which
/// jobs end.
const SBATCH: &str = r#"
for a in "$@"; do case $a in --job-name=*) name=${a#*=};; --output=*) out=${a#*=};; --chdir=*) dir=${a#*=};; --wrap=*) wrapped=${a#*=};; esac; done
exec 9>$DB/lock; flock 9
if [ -s $DB/refuse-sbatch ]; then
    sed -i 1d $DB/refuse-sbatch
    echo "sbatch: error: invalid partition specified: nowhere" >&2
    echo "sbatch: error: Batch job submission failed: Invalid partition name specified" >&2; exit 1
fi
if [ -e $DB/limit ] && [ $(grep -lx RUNNING $DB/job-*/state 2>/dev/null | wc -l) -ge $(<$DB/limit) ]; then
    echo >> $DB/refusals
    echo "sbatch: error: QOSMaxSubmitJobPerUserLimit" >&2
    echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)" >&2
    exit 1
fi
id=$(( $(ls -d $DB/job-* 2>/dev/null | wc -l) + 1 )); job=$DB/job-$id; mkdir $job
lost=; delay=0
[ $id = 1 ] && [ -e $DB/deaf ] && { lost=1; delay=1; touch $job/hidden; }
[ $id != 1 ] && [ -e $DB/deaf ] && delay=2
flock -u 9; exec 9>&-
echo "$name" > $job/name; echo "$dir" > $job/dir; echo RUNNING > $job/state; echo "$*" > $job/asked
export SLURM_JOB_ID=$id
work=$dir
echo "$wrapped" > $job/script
if [ -e $DB/late ]; then work=$job/$(basename $dir); cp -a $dir $work; sed -i "s|$dir|$work|" $job/script; fi
setsid bash -c "sleep $delay; rm -f $job/hidden; cd $dir; sh $job/script >>$out 2>&1 & echo \$! > $job/pid; wait
    { cat $DB/final 2>/dev/null || echo COMPLETED; } > $job/state
    if [ -e $DB/late ]; then sleep \$(<$DB/late); [ -d $dir ] && cp -a $work/. $dir/; fi" </dev/null >/dev/null 2>&1 &
[ $lost ] && { echo "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation" >&2; exit 1; }
echo $id
"#;

const SQUEUE: &str = r#"
sleep 0.05
for a in "$@"; do case $a in --jobs=*) id=${a#*=};; esac; done
shown() { [ -e $1/state ] && [ ! -e $1/hidden ] && echo "${1##*-}|$(<$1/state)|None|node7|$(<$1/name)|$(<$1/dir)"; }
if [ -n "$id" ]; then
    [ -d $DB/job-$id ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
    shown $DB/job-$id; exit 0
fi
echo >> $DB/listings
for j in $DB/job-*; do shown $j; done; exit 0
"#;

/// As many times as `refuse` has lines the controller is away.
const SCANCEL: &str = r#"
echo "$*" >> $DB/scancels
if [ -s $DB/refuse ]; then sed -i 1d $DB/refuse; echo "scancel: error: Unable to contact slurm controller" >&2; exit 1; fi
kill -TERM $(<$DB/job-${@: -1}/pid)
"#;

/// The parts of `srun` and `apptainer` that matter: they become the command, and leave word of what
/// they were given.
const SRUN: &str =
    r#"env > $DB/srun-environment; while [ "$1" != /bin/sh ]; do shift; done; exec "$@""#;
const APPTAINER: &str = r#"
while [ "$1" != /bin/sh ]; do image=$1; shift; done
[ -e "$image" ] || { echo "FATAL: could not open image $image" >&2; exit 255; }
export IMAGE=$(<$image)
exec "$@"
"#;

/// The stub trainer, which waits for `go` first and says which image it is in.
fn waits() -> String {
    let wait = "echo \"$IMAGE\" >> \"$TPRIMAT_PROJECT_DIR/up\"\nuntil [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.05; done\n";
    format!("{wait}{TRAINER}")
}

struct Cluster(Project);

impl Cluster {
    fn new() -> Self {
        let project = Project::new(ONE_RUN);
        project.write("trainer.sh", &waits());
        let cluster = Self(project);
        fs::create_dir_all(cluster.db("")).unwrap();
        for (name, script) in [
            ("sbatch", SBATCH),
            ("squeue", SQUEUE),
            ("scancel", SCANCEL),
            ("sacct", ""),
            ("srun", SRUN),
            ("apptainer", APPTAINER),
        ] {
            cluster.stand_in(name, script);
        }
        cluster.execution("executor: slurm, slurm: { max_jobs: 8 }");
        cluster
    }

    fn stand_in(&self, name: &str, script: &str) {
        let path = self.0.folder().join("bin").join(name);
        mock::program(
            &path,
            format!("#!/bin/bash\nDB={}\n{script}", self.db("").display()),
        );
    }

    fn execution(&self, of_cpu: &str) {
        self.0.write(
            "config.yaml",
            &format!("{CONFIG}execution:\n  cpu: {{ {of_cpu} }}\n"),
        );
    }

    fn repeats(&self, repeats: usize) {
        self.0.edit(
            "matrix.toml",
            "repeats = 1",
            &format!("repeats = {repeats}"),
        );
    }

    fn db(&self, name: &str) -> PathBuf {
        self.0.folder().join("db").join(name)
    }

    fn jobs(&self) -> usize {
        let names = fs::read_dir(self.db(""))
            .unwrap()
            .flatten()
            .map(|entry| entry.file_name());
        names
            .filter(|name| name.to_string_lossy().starts_with("job-"))
            .count()
    }

    fn command(&self, folder: &Path, arguments: &[&str]) -> std::process::Command {
        let mut command = self.0.tprimat(arguments);
        let path = std::env::var("PATH").unwrap();
        command
            .env(
                "PATH",
                format!("{}:{path}", self.0.folder().join("bin").display()),
            )
            .current_dir(folder);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        self.command(self.0.root(), arguments)
            .output()
            .unwrap()
            .into()
    }

    /// A build whose trainers are up, so many of them.
    fn started(&self, trainers: usize) -> Child {
        let mut build = self.command(self.0.root(), &["build"]);
        let build = build
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        until("the trainers run in their jobs", || self.up() >= trainers);
        build
    }

    fn up(&self) -> usize {
        fs::read_to_string(self.0.path("up"))
            .unwrap_or_default()
            .lines()
            .count()
    }

    fn goes_after(&self, seconds: u64) -> std::thread::JoinHandle<()> {
        let go = self.0.path("go");
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(seconds));
            fs::write(go, "").unwrap();
        })
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
fn every_job_of_a_killed_build_is_taken_up_and_none_is_submitted_again() {
    let cluster = Cluster::new();
    cluster.repeats(6);
    // The jobs of this stand-in are all on one host, which has one device.
    cluster.0.edit(
        "config.yaml",
        "inputs: [trainer.sh] }",
        "inputs: [trainer.sh], share: true }",
    );
    let mut build = cluster.started(6);
    build.kill().unwrap();
    build.wait().unwrap();
    let _ = fs::remove_file(cluster.db("listings"));
    let go = cluster.goes_after(3);
    let ran = cluster.run(&["build"]).ends_with(0);
    go.join().unwrap();
    assert_eq!(
        (cluster.jobs(), cluster.0.launches()),
        (6, 6),
        "{}",
        ran.stderr
    );
    assert_eq!(
        ran.stderr.matches("took up the run").count(),
        6,
        "{}",
        ran.stderr
    );
    // One look at the queue is for all that wait; a look for each, twice a second at first, would
    // be far more.
    let listings = fs::read_to_string(cluster.db("listings"))
        .unwrap()
        .lines()
        .count();
    assert!(listings < 24, "{listings}");
}

#[test]
fn the_end_of_a_job_may_be_seen_late_and_is_no_failure() {
    let cluster = Cluster::new();
    fs::write(cluster.db("late"), "8").unwrap();
    cluster.0.write("go", "");
    let ran = cluster.run(&["build"]).ends_with(0);
    assert_eq!(
        (cluster.jobs(), cluster.0.launches()),
        (1, 1),
        "{}",
        ran.stderr
    );
}

#[test]
fn of_two_submissions_the_one_that_runs_is_waited_for() {
    let cluster = Cluster::new();
    fs::write(cluster.db("deaf"), "").unwrap();
    // Longer than the job that found the folder taken is over.
    let go = cluster.goes_after(10);
    let ran = cluster.run(&["build"]).ends_with(0);
    go.join().unwrap();
    assert_eq!(
        (cluster.jobs(), cluster.0.launches()),
        (2, 1),
        "{}",
        ran.stderr
    );
    assert!(
        cluster
            .run(&["build"])
            .ends_with(0)
            .stderr
            .contains("nothing to do")
    );
}

#[test]
fn a_cancellation_is_tried_until_slurm_takes_it_and_is_told() {
    let cluster = Cluster::new();
    cluster.execution("executor: slurm, slurm: { cancel_on_interrupt: true }");
    let build = cluster.started(1);
    fs::write(cluster.db("refuse"), "1\n2\n").unwrap();
    let begun = Instant::now();
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGINT).unwrap();
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(130), "{}", ran.stderr);
    assert!(
        ran.stderr
            .contains("Slurm to cancel job 1, which it did not yet"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        fs::read_to_string(cluster.db("scancels"))
            .unwrap()
            .lines()
            .count(),
        3
    );
    assert!(
        begun.elapsed() < Duration::from_secs(25),
        "the trainer would have waited for ever"
    );
    assert!(
        cluster
            .0
            .processes()
            .iter()
            .all(|(_, line)| !line.contains("trainer.sh"))
    );

    assert!(
        ran.stderr
            .contains("interrupted: 1 job is being cancelled; a second Ctrl-C leaves it"),
        "{ran:?}"
    );

    // A second Ctrl-C leaves the job, and says so.
    fs::write(cluster.db("refuse"), "1\n".repeat(1000)).unwrap();
    cluster.0.remove("up");
    let build = cluster.started(1);
    let pid = Pid::from_raw(build.id().cast_signed());
    kill(pid, Signal::SIGINT).unwrap();
    until("it is tried", || {
        fs::read_to_string(cluster.db("scancels"))
            .unwrap()
            .lines()
            .count()
            > 4
    });
    kill(pid, Signal::SIGINT).unwrap();
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert!(
        ran.code == Some(130) && ran.stderr.contains("Slurm job 2 goes on"),
        "{}",
        ran.stderr
    );
}

const RECIPE: &str = r#"
id = "mine"
name = "own"
vendors = ["cpu"]
[launch]
templates = ["mine.sh.j2"]
command = ["bash", "mine.sh"]
reads_job = true
[lock]
facts = ["accelerator", "count"]
packages = ["torch"]
[require]
commands = ["bash"]
[log]
format = "tprimat"
"#;

/// Of a framework whose runs need more than the cluster gives by itself.
#[test]
fn a_recipe_may_say_what_slurm_is_asked_for_and_the_configuration_is_stronger() {
    let cluster = Cluster::new();
    let project = &cluster.0;
    let recipe = RECIPE.replace("packages = [\"torch\"]\n", "");
    let defaults = "[defaults]\n\"execution.cpu.slurm.time\" = \"00:07:00\"\n\"execution.cpu.slurm.qos\" = \"long\"\n";
    cluster.execution("executor: slurm, slurm: { qos: short }");
    project
        .write("go", "")
        .write("recipes/mine/recipe.toml", &format!("{recipe}{defaults}"))
        .write("recipes/mine/mine.sh.j2", TRAINER)
        .edit("config.yaml", "frameworks:\n", "frameworks:\n  mine: {}\n")
        .edit("matrix.toml", "\"cmd\"", "\"mine\"");
    cluster.run(&["build"]).ends_with(0);
    let asked = fs::read_to_string(cluster.db("job-1/asked")).unwrap();
    assert!(
        asked.contains("--time=00:07:00") && asked.contains("--qos=short"),
        "{asked}"
    );
}

/// As a QOS with MaxSubmitJobsPerUser does.
#[test]
fn a_limit_on_the_number_of_jobs_is_waited_out_and_said_once() {
    let cluster = Cluster::new();
    cluster.repeats(3);
    cluster.0.edit(
        "config.yaml",
        "inputs: [trainer.sh] }",
        "inputs: [trainer.sh], share: true }",
    );
    fs::write(cluster.db("limit"), "1").unwrap();
    let go = cluster.goes_after(2);
    let ran = cluster.run(&["build"]).ends_with(0);
    go.join().unwrap();
    assert_eq!((cluster.jobs(), cluster.0.launches()), (3, 3));
    assert!(cluster.db("refusals").exists(), "{}", ran.stderr);
    assert_eq!(
        ran.stderr.matches("slurm.max_jobs").count(),
        1,
        "{}",
        ran.stderr
    );
    // Where no job of tprimat's is there, nothing would make room.
    fs::write(cluster.db("limit"), "0").unwrap();
    let ran = cluster.run(&["build", "--force=measured"]).ends_with(1);
    assert!(
        ran.stderr.contains("QOSMaxSubmitJobPerUserLimit") && cluster.jobs() == 3,
        "{}",
        ran.stderr
    );
}

#[test]
fn a_submission_that_is_refused_costs_its_own_training_alone() {
    let cluster = Cluster::new();
    let project = &cluster.0;
    project
        .write("go", "")
        .edit("matrix.toml", "\"tiny\"", "[\"tiny\", \"wide\"]");
    cluster.execution("executor: slurm, slurm: { max_jobs: 1 }");
    fs::write(cluster.db("refuse-sbatch"), "1\n").unwrap();
    let ran = cluster.run(&["build"]).ends_with(1);
    assert_eq!(
        (cluster.jobs(), project.launches()),
        (1, 1),
        "{}",
        ran.stderr
    );
    let at = |part: &str| ran.stderr.find(part);
    // Whichever is rendered first is the one that is refused.
    let (refused, done) = (at("sbatch refused the job: "), at("1 of 2 runs over"));
    assert!(
        refused.is_some() && refused < done && at("Invalid partition").is_some(),
        "{}",
        ran.stderr
    );
    let left = project.names_in("cache/runs");
    assert!(left.iter().all(|name| name.starts_with('.')), "{left:?}");
    cluster.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
}

#[test]
fn what_no_container_can_be_given_costs_its_own_trainings_alone() {
    let cluster = Cluster::new();
    let project = &cluster.0;
    cluster.execution("executor: apptainer, container: { image: images/a.sif }");
    project
        .write("go", "")
        .write("images/a.sif", "AAA")
        .edit("matrix.toml", "\"tiny\"", "[\"tiny\", \"wide\"]")
        .edit(
            "config.yaml",
            "inputs: [trainer.sh] }",
            "inputs: [trainer.sh], env: { A.B: x } }",
        );
    let ran = cluster.run(&["build"]).ends_with(1);
    let said = ran.stderr.matches("/single#1: failed");
    assert_eq!((said.count(), project.launches()), (2, 0), "{}", ran.stderr);
    assert!(
        ran.stderr.contains("cannot be set in a container"),
        "{}",
        ran.stderr
    );
    let left = project.names_in("cache/runs");
    assert!(left.iter().all(|name| name.starts_with('.')), "{left:?}");
}

#[test]
fn a_cell_whose_container_takes_no_several_nodes_is_blocked_and_others_run() {
    let cluster = Cluster::new();
    let project = &cluster.0;
    cluster.execution(
        "executor: slurm+container, container: { engine: pyxis, image: 'repo/x@sha256:00ff' }",
    );
    let recipe = RECIPE
        .replace("reads_job = true", "reads_job = true\nnodes = true")
        .replace("packages = [\"torch\"]\n", "");
    project
        .write("go", "")
        .write("recipes/mine/recipe.toml", &recipe)
        .write("recipes/mine/mine.sh.j2", TRAINER)
        .edit("config.yaml", "frameworks:\n", "frameworks:\n  mine: {}\n")
        .edit(
            "config.yaml",
            "  single: { num_gpus: 1, DP: 1 }\n",
            "  single: { num_gpus: 1, DP: 1 }\n  two: { num_gpus: 2, DP: 2 }\n",
        )
        .edit("matrix.toml", "\"cmd\"", "\"mine\"")
        .edit("matrix.toml", "\"single\"", "[\"single\", \"two\"]");
    let ran = cluster.run(&["build"]);
    assert!(
        ran.stderr
            .contains("a run on several nodes is not started in containers of pyxis"),
        "{}",
        ran.stderr
    );
    assert_eq!(
        (cluster.jobs(), project.launches()),
        (1, 1),
        "{}",
        ran.stderr
    );
    let plan = cluster.run(&["plan"]).stdout;
    assert!(plan.contains("blocked"), "{plan}");
}

#[test]
fn a_build_that_is_stopped_says_which_jobs_go_on() {
    let cluster = Cluster::new();
    let detached = cluster.run(&["build", "--detach"]).ends_with(0);
    until("the trainer runs in its job", || cluster.up() == 1);
    let stopped = cluster.run(&["stop"]).ends_with(0).stderr;
    let told = "1 run went on as Slurm job 1 (train cpu/cmd/tiny/single#1) when the build ended; `scancel 1` ends it";
    assert!(stopped.contains(told), "{stopped}\n{}", detached.stderr);
    assert!(cluster.run(&["status"]).stdout.contains(told));
    let build = || cluster.run(&["status", "--json"]).json()["builds"][0].clone();
    assert_eq!(build()["going_on"][0]["job"], "Slurm job 1");
    cluster.0.write("go", "");
    cluster.run(&["build"]).ends_with(0);
    assert_eq!((cluster.jobs(), cluster.0.launches()), (1, 1));
    assert_eq!(build()["going_on"], serde_json::json!([]));
}

/// torchrun ends with 1 where the kernel has killed a worker for lack of memory.
#[test]
fn a_launcher_whose_worker_ran_out_of_host_memory_is_said_to_have() {
    let cluster = Cluster::new();
    cluster.0.write("trainer.sh", "exit 1\n");
    fs::write(cluster.db("final"), "OUT_OF_MEMORY").unwrap();
    let ran = cluster.run(&["build"]).ends_with(1);
    assert!(
        ran.stderr.contains("Slurm job 1 ended: out of memory"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_step_of_pyxis_belongs_to_the_job_that_starts_it() {
    let cluster = Cluster::new();
    cluster.execution(
        "executor: slurm+container, container: { engine: pyxis, image: 'repo/x@sha256:00ff' }",
    );
    cluster.0.write("go", "");
    let mut build = cluster.command(cluster.0.root(), &["build"]);
    // As within an allocation that the caller holds.
    let ran: Ran = build
        .env("SLURM_JOB_ID", "99")
        .env("SLURM_STEP_ID", "4")
        .output()
        .unwrap()
        .into();
    ran.ends_with(0);
    let environment = fs::read_to_string(cluster.db("srun-environment")).unwrap();
    assert!(environment.contains("SLURM_JOB_ID=1\n"), "{environment}");
}

#[test]
fn an_image_that_is_a_file_is_the_one_that_the_key_names() {
    let cluster = Cluster::new();
    let project = &cluster.0;
    cluster.repeats(2);
    cluster.execution("executor: apptainer, container: { image: images/a.sif }");
    project.write("images/a.sif", "AAA").write("sub/readme", "");
    let build = cluster.started(1);
    project.write("images/a.sif", "BBB").write("go", "");
    let ran: Ran = build.wait_with_output().unwrap().into();
    assert_eq!(ran.code, Some(1), "{}", ran.stderr);
    assert_eq!(
        project.read("up"),
        "AAA\n",
        "the second repeat would have run in another image"
    );
    assert!(
        ran.stderr.contains("the image images/a.sif changed"),
        "{}",
        ran.stderr
    );
    // By its path from the project, wherever tprimat is called.
    project.write("images/a.sif", "AAA");
    let ran: Ran = cluster
        .command(&project.path("sub"), &["build", "../matrix.toml"])
        .output()
        .unwrap()
        .into();
    assert_eq!(
        (ran.code, project.launches()),
        (Some(0), 3),
        "both are measured, the first one again: {}",
        ran.stderr
    );
    assert!(
        project
            .read("cache/memos/data.json")
            .contains("images/a.sif"),
        "a plan reads it once"
    );
    // Under Slurm as well, and before anything is queued.
    cluster.execution("executor: slurm+apptainer, container: { image: images/a.sif }");
    project.write("images/a.sif", "CCC");
    let ran = cluster.run(&["build", "--force=measured"]);
    assert!(
        ran.stderr.contains("differs from tprimat.lock") && cluster.jobs() == 0,
        "{}",
        ran.stderr
    );
}

/// Says that there is a container of a profiled run, to whoever asks for those of this folder.
const DOCKER: &str = r#"
case "$*" in
ps*label=tprimat.runs=$PROFILES*) [ -e $DB/removed ] || echo tprimat-profile-1;;
rm*) echo "$*" > $DB/removed;;
container*) echo "Error: No such container: x" >&2; exit 1;;
esac
"#;

#[test]
fn the_container_of_a_profiled_run_stays_while_the_run_goes_on() {
    let cluster = Cluster::new();
    let project = &cluster.0;
    let profiles = project.path("cache/profiles");
    let label = tprimat::digest::Digest::of(profiles.as_os_str().as_encoded_bytes()).short();
    cluster.stand_in("docker", &format!("PROFILES={label}\n{DOCKER}"));
    cluster.execution("executor: local");
    for runs in ["runs", "profiles"] {
        project.write(&format!("cache/{runs}/.engines"), "docker\n");
    }
    let spec = project
        .write("go", "")
        .path("cache/profiles/profile-1/owner.lock");
    project
        .write("cache/profiles/profile-1/spec.json", "{}")
        .write("cache/profiles/profile-1/owner.lock", "");
    let owner = fs::File::open(&spec).unwrap();
    owner.lock().unwrap();
    cluster.run(&["build"]).ends_with(0);
    assert!(!cluster.db("removed").exists());
    drop(owner);
    let ran = cluster.run(&["build", "--force=measured"]).ends_with(0);
    assert!(
        ran.stderr
            .contains("removed the container tprimat-profile-1"),
        "{}",
        ran.stderr
    );
}
