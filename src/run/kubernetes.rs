//! Kubernetes: a job is a Job whose one pod is the supervisor (`__run DIR pod`), made and watched through
//! kubectl. On several nodes there is one Job a node, and the pod of node 0 conducts the others (`nodes`).
//! The run folder is on a volume that this host mounts as well, so whatever becomes of the pod, what it has
//! finished waits there.

mod standing;

use std::{
    collections::BTreeMap,
    fs, io,
    path::Path,
    sync::{Arc, Mutex},
    thread,
    time::{Duration, Instant},
};

use serde_json::{Value, json};

use super::{
    folder::{lock, make, write_exit},
    spec::{ExitKind, RunExit, RunSpec, Target, attempt_id},
    system::{Answer, Commands, Shown, Submission, System, SystemError, job_name},
};
use crate::{
    error::{Error, Result},
    files::{self, Durability, unix_now},
};

/// The last word of `tprimat __run DIR pod`, the supervisor of the run in DIR as the process of a pod; with
/// `-K` behind it of the pod of node K.
const POD: &str = "pod";
/// In a pod, where the trainer's environment is: the Secret of the Job, as a file.
pub(crate) const ENVIRONMENT_VARIABLE: &str = "TPRIMAT_ENVIRONMENT";
/// In the folder of runs: what all Jobs from there are labelled with. A path would not do, for two hosts
/// may have the same.
const OWNER: &str = ".kubernetes";
/// How the names of files there begin that name a run whose Job is still to be deleted, and say where it
/// is.
const UNDELETED: &str = ".undeleted-";
/// The labels of a Job, its Secret and its pod.
pub(crate) const RUN_LABEL: &str = "tprimat.dev/run";
pub(crate) const OWNER_LABEL: &str = "tprimat.dev/runs";

/// How long the name of a Job may be. Its pods have it with a dash and five letters behind it, which make one
/// label of DNS, of 63 characters; of a longer one Kubernetes cuts the end, and the pod is not known as its.
const LONGEST: usize = 57;

/// Within which time a kubelet notices that a process has ended, and how often one looks.
const NOTICED: Duration = Duration::from_secs(5);
const PAUSE: Duration = Duration::from_millis(500);

/// How long a cluster that has shown its Jobs may refuse to: an API server that comes up again refuses everybody for a moment.
const FORBIDDEN: Duration = Duration::from_secs(30 * 60);

/// What chooses the cluster in a command of kubectl.
fn words_of(target: &Target) -> Vec<String> {
    let option = |name: &str, value: &Option<String>| {
        let value = value.as_ref().filter(|value| !value.is_empty());
        value.map(|value| format!("--{name}={value}"))
    };
    let context = option("context", &target.context).into_iter();
    context
        .chain(option("namespace", &target.namespace))
        .collect()
}

/// The name of a run's Job, or of the one of one of its nodes, which Kubernetes lets nobody give a second time.
/// It fits whatever the run is called: of an id that is too long the end stays, which is random.
pub(crate) fn name_of(run_id: &str, node: usize) -> String {
    let id = run_id.to_lowercase().replace('.', "-");
    let room = LONGEST - of_node(&job_name(""), node).len();
    let cut = id.len().saturating_sub(room);
    of_node(&job_name(id.get(cut..).unwrap_or_default()), node)
}

/// The last word of what the pod of a node executes.
pub(crate) fn role_of(node: usize) -> String {
    of_node(POD, node)
}

/// Whose last word this is.
pub(crate) fn node_of(role: &str) -> Option<usize> {
    match role.strip_prefix(POD)? {
        "" => Some(0),
        number => number.strip_prefix('-')?.parse().ok(),
    }
}

fn of_node(name: &str, node: usize) -> String {
    match node {
        0 => name.to_owned(),
        _ => format!("{name}-{node}"),
    }
}

/// The Jobs of a run. Node 0 has the last place: where its Job is there, all have been made.
fn names_of(spec: &RunSpec) -> Vec<String> {
    let nodes = (0..spec.nodes()).rev();
    nodes.map(|node| name_of(&spec.run_id, node)).collect()
}

/// What the Jobs of a folder of runs are labelled with: made once, by whoever comes first.
pub(crate) fn owner(runs: &Path) -> Result<String> {
    let path = runs.join(OWNER);
    files::create_dir_all(runs)?;
    let id = attempt_id()
        .rsplit('-')
        .next()
        .unwrap_or_default()
        .to_owned();
    match make(&path, id.as_bytes()) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(Error::io("cannot write", path)(error))
        }
        _ => Ok(String::from_utf8_lossy(&files::read(&path)?)
            .trim()
            .to_owned()),
    }
}

/// The cluster that the caller's kubectl reaches.
#[derive(Clone, Default)]
pub struct Kubernetes {
    /// Jobs and their pods.
    commands: Commands<Vec<Value>>,
    /// When the caller was last shown Jobs, by the words that choose the cluster.
    answered: Arc<Mutex<BTreeMap<Vec<String>, Instant>>>,
    /// Images that a run of this build waited for in vain, and why: no other run waits for them.
    absent: Arc<Mutex<BTreeMap<String, String>>>,
}

impl Kubernetes {
    #[must_use]
    pub fn new(env: BTreeMap<String, String>) -> Self {
        Self {
            commands: Commands::new(env),
            ..Self::default()
        }
    }

    /// Was the caller shown Jobs there not long ago?
    fn has_answered(&self, target: &Target) -> bool {
        let answered = lock(&self.answered);
        let last = answered.get(&words_of(target));
        last.is_some_and(|last| last.elapsed() < FORBIDDEN)
    }

    /// What kubectl printed.
    fn kubectl(&self, target: &Target, words: &[&str], input: &str) -> Answer<String> {
        let of_target = words_of(target);
        let all: Vec<&str> = of_target.iter().map(String::as_str).collect();
        let all = [&all, words].concat();
        let said = self.commands.run("kubectl", &all, input, is_passing);
        said.map_err(|why| SystemError {
            said: said_of(&why.said),
            ..why
        })
    }

    /// The items of a list that kubectl prints.
    fn items(&self, target: &Target, words: &[&str]) -> Answer<Vec<Value>> {
        let said = self.kubectl(target, words, "")?;
        let list: Value = serde_json::from_str(&said).map_err(|why| SystemError {
            said: format!("kubectl printed what is not JSON: {why}"),
            is_passing: true,
        })?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    }

    /// Does the cluster answer, and may the caller look at Jobs there?
    ///
    /// # Errors
    /// What kubectl said, and the command that asks the same.
    pub fn reach(&self, target: &Target) -> Result<(), (String, String)> {
        let none = format!("--selector={RUN_LABEL}=none");
        let words = ["get", "jobs", &none, "--output=name"];
        self.kubectl(target, &words, "").map(drop).map_err(|why| {
            let place = words_of(target).join(" ");
            (
                why.said,
                format!("kubectl {place} get jobs").replace("  ", " "),
            )
        })
    }

    /// The Jobs of these runs and their pods.
    fn list(&self, spec: &RunSpec, age: Duration) -> Answer<Arc<Vec<Value>>> {
        let target = target_of(spec);
        let mut key = words_of(target);
        key.push(target.owner.clone());
        let selector = format!("--selector={OWNER_LABEL}={}", harmless(&target.owner));
        let words = ["get", "jobs,pods", &selector, "--output=json"];
        let list = || self.items(target, &words);
        let listed = self.commands.listed(key, age, list)?;
        lock(&self.answered).insert(words_of(target), Instant::now());
        Ok(listed)
    }

    /// Deletes the Jobs that could not be deleted when their runs were taken in.
    pub(crate) fn sweep(&self, runs: &Path) {
        let entries = fs::read_dir(runs).into_iter().flatten().flatten();
        for path in entries.map(|entry| entry.path()) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let target = || serde_json::from_slice(&files::read(&path).ok()?).ok();
            if let Some(run_id) = name.strip_prefix(UNDELETED)
                && let Some(target) = target()
                && self.delete(&target, run_id).is_ok()
            {
                let _ = fs::remove_file(&path);
            }
        }
    }

    fn delete(&self, target: &Target, run_id: &str) -> Answer<()> {
        let selector = format!("--selector={RUN_LABEL}={}", harmless(run_id));
        let words = ["delete", "jobs,secrets", &selector, "--wait=false"];
        self.kubectl(target, &words, "").map(drop)
    }

    /// How the Job of a run stands, from a listing.
    fn standing(&self, spec: &RunSpec, found: &[Value]) -> Shown {
        let is_of = |item: &&Value| item["metadata"]["labels"][RUN_LABEL] == *spec.run_id;
        let of_kind = |kind: &str| {
            let items = found.iter().filter(is_of);
            items
                .filter(|item| item["kind"] == *kind)
                .collect::<Vec<_>>()
        };
        let (jobs, pods) = (of_kind("Job"), of_kind("Pod"));
        let standing = standing::of_all(&names_of(spec), &jobs, &pods, unix_now());
        let mut shown = standing.shown;
        if let Some(name) = standing.explained_by_events_of {
            shown.reason = self.last_warning(spec, &name).unwrap_or(shown.reason);
        }
        let silent = standing.silent_node.as_ref();
        if let Some(said) = silent.and_then(|node| self.node_said(spec, node)) {
            if shown.reason.ends_with(standing::SILENT) {
                shown.reason += &format!(": {said}");
            }
            if let Some(ExitKind::Lost(why)) = &mut shown.fate {
                *why += &format!(": {said}");
            }
        }
        if let Some(image) = standing.absent_image {
            lock(&self.absent).insert(image, shown.reason.clone());
        }
        shown
    }

    /// What the cluster says of a node that does not answer, if the caller may look at nodes.
    fn node_said(&self, spec: &RunSpec, name: &str) -> Option<String> {
        let words = ["get", "node", name, "--output=json"];
        match self.kubectl(target_of(spec), &words, "") {
            Ok(node) => standing::said_of_node(&serde_json::from_str(&node).ok()?),
            Err(why) if why.said.contains("NotFound") => {
                Some("it is not in the cluster any more".to_owned())
            }
            Err(_) => None,
        }
    }

    /// What a cluster last complained of about an object.
    fn last_warning(&self, spec: &RunSpec, name: &str) -> Option<String> {
        let field = format!(
            "--field-selector=type=Warning,involvedObject.name={}",
            harmless(name)
        );
        let words = ["get", "events", &field, "--output=json"];
        let items = self.items(target_of(spec), &words).ok()?;
        let is_failure = |event: &&Value| {
            event["reason"]
                .as_str()
                .is_some_and(|why| why.starts_with("Failed"))
        };
        let event = items.iter().rfind(is_failure)?;
        let text = |key: &str| event[key].as_str().unwrap_or_default();
        Some(format!(
            "{}: {}",
            text("reason"),
            standing::short(text("message"))
        ))
    }
}

impl System for Kubernetes {
    fn name(&self) -> &'static str {
        "Kubernetes"
    }

    fn submit(&self, spec: &RunSpec, tprimat: Option<&Path>) -> Result<Submission, String> {
        let (name, names) = (name_of(&spec.run_id, 0), names_of(spec));
        let there = || -> Answer<bool> {
            let found = self.list(spec, Duration::ZERO)?;
            let is_there = |name: &String| {
                let mut jobs = found.iter().filter(|item| item["kind"] == "Job");
                jobs.any(|job| job["metadata"]["name"] == **name)
            };
            // Whoever can make none asks only whether the run may have begun.
            Ok(match tprimat {
                Some(_) => names.iter().all(is_there),
                None => is_there(&name),
            })
        };
        let waits = |why: &SystemError| format!("Kubernetes, which takes no Job now: {why}");
        let why = match there() {
            Ok(true) => return Ok(Submission::Job(name)),
            Ok(false) if tprimat.is_none() => return Ok(Submission::NoJob),
            Ok(false) => None,
            // Somebody who may not look makes nothing either; a cluster that has let the caller look before is coming up again,
            // or a token has run out.
            Err(why)
                if !why.is_passing && tprimat.is_some() && !self.has_answered(target_of(spec)) =>
            {
                Some(why)
            }
            Err(why) => return Err(waits(&why)),
        };
        let refused = |why: &SystemError| {
            Ok(Submission::Refused(format!(
                "kubectl refused the Job: {why}; execution.<platform>.kubernetes in config.yaml says what it was asked for, `tprimat doctor` what \
                 you may do there"
            )))
        };
        if let Some(why) = why {
            return refused(&why);
        }
        let target = target_of(spec);
        let is_of = |(image, _): &(&String, &String)| target.manifest.contains(*image);
        let absent = (lock(&self.absent).iter().find(is_of)).map(|(_, why)| why.clone());
        if let Some(why) = absent {
            let found = "no Job was made, because another run of this build found that";
            return Ok(Submission::Refused(format!("{found} {why}")));
        }
        let environment = serde_json::to_string(&spec.env).unwrap_or_default();
        let secret = json!({
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {
                "name": name,
                "labels": { RUN_LABEL: spec.run_id, OWNER_LABEL: target.owner },
            },
            "stringData": { "environment": environment },
        });
        // `create` goes on where one of several Jobs is there already. Unlike `apply`, it keeps no copy of
        // the Secret in an annotation. It takes input whose first character is a brace for JSON, hence the
        // dashes before it.
        let input = format!("---\n{secret}\n---\n{}", target.manifest);
        let passes = |why: &SystemError| {
            let is_known = || why.said.contains("Unauthorized") && self.has_answered(target);
            why.is_passing || why.said.contains("exceeded quota") || is_known()
        };
        let why = match self.kubectl(target, &["create", "--filename=-"], &input) {
            Ok(_) => return Ok(Submission::Job(name)),
            Err(why) => why,
        };
        // The Secret may be there from a submission that was cut off, and the Job be new.
        match there() {
            Ok(true) => Ok(Submission::Job(name)),
            Ok(false) if !passes(&why) => refused(&why),
            Ok(false) | Err(_) => Err(waits(&why)),
        }
    }

    fn state(&self, _: &str, spec: &RunSpec, age: Duration) -> Answer<Shown> {
        let listed = self.list(spec, age)?;
        let shown = self.standing(spec, &listed);
        // Made after the listing, perhaps.
        match shown.state.is_empty() && !age.is_zero() {
            true => self.state("", spec, Duration::ZERO),
            false => Ok(shown),
        }
    }

    /// The pod gets SIGTERM, and its own grace. In the foreground the Job is there until it has ended.
    fn cancel(&self, _: &str, spec: &RunSpec, _: bool) -> Answer<()> {
        let names = names_of(spec);
        let mut words = vec!["delete", "jobs"];
        words.extend(names.iter().map(String::as_str));
        words.extend(["--ignore-not-found", "--wait=false", "--cascade=foreground"]);
        self.kubectl(target_of(spec), &words, "").map(drop)
    }

    fn cancels(&self, _: &str, spec: &RunSpec) -> String {
        let words = |words: Vec<String>| -> String {
            words.iter().map(|word| format!(" {word}")).collect()
        };
        let (target, names) = (words(words_of(target_of(spec))), words(names_of(spec)));
        format!("kubectl{target} delete job{names}")
    }

    fn fate(&self, _: &RunSpec, shown: Shown, is_told: bool) -> Option<ExitKind> {
        let deleted = "Kubernetes told the pod to end: it was deleted, evicted or preempted";
        shown
            .fate
            .or_else(|| is_told.then(|| ExitKind::Killed(deleted.to_owned())))
    }

    fn loss_of(&self, spec: &RunSpec, host: &str) -> Option<String> {
        let mut nodes = host.split(',');
        nodes.find_map(|node| {
            let said = self.node_said(spec, &harmless(node))?;
            Some(format!("{}: {said}", standing::loss_of(node)))
        })
    }

    fn let_go(&self, spec: &RunSpec, exit: Option<&RunExit>) {
        // What only the Job could tell is in the folder before the Job goes.
        if let Some(exit) = exit
            && write_exit(&spec.dir, exit).is_err()
        {
            return;
        }
        // A pod that is deleted before its end was noticed keeps its GPUs for all of its grace.
        let begun = Instant::now();
        while exit.is_some()
            && begun.elapsed() < NOTICED
            && self
                .state("", spec, Duration::ZERO)
                .is_ok_and(|shown| !shown.is_over)
        {
            thread::sleep(PAUSE);
        }
        let (target, runs) = (target_of(spec), spec.dir.parent());
        if let (Err(_), Some(runs)) = (self.delete(target, &spec.run_id), runs) {
            // The cluster is away, or the caller's rights are: a later build deletes it.
            let note = runs.join(format!("{UNDELETED}{}", spec.run_id));
            let text = serde_json::to_vec(target).unwrap_or_default();
            let _ = files::write_atomically(&note, &text, Durability::Synced);
        }
    }
}

fn target_of(spec: &RunSpec) -> &Target {
    static NONE: Target = Target {
        context: None,
        namespace: None,
        owner: String::new(),
        cancel_on_interrupt: false,
        asked: None,
        manifest: String::new(),
    };
    let job = spec.job.as_ref();
    job.and_then(|job| job.kubernetes.as_ref()).unwrap_or(&NONE)
}

/// A value of a selector: what came with a stranger's folder must not select more.
fn harmless(value: &str) -> String {
    let is_harmless = |c: &char| c.is_ascii_alphanumeric() || "-.".contains(*c);
    value.chars().filter(is_harmless).collect()
}

fn is_passing(stderr: &str) -> bool {
    const PASSING: [&str; 11] = [
        "Unable to connect to the server",
        "connection refused",
        "was refused",
        "i/o timeout",
        "TLS handshake timeout",
        "context deadline exceeded",
        "ServiceUnavailable",
        "(Timeout)",
        "TooManyRequests",
        "InternalError",
        "EOF",
    ];
    PASSING.iter().any(|part| stderr.contains(part))
}

/// What kubectl said without what its library logs, which begins with a letter and the time and so differs
/// each time; kubectl says the same below in words.
fn said_of(lines: &str) -> String {
    let is_logged = |line: &&str| {
        let mut chars = line.chars();
        chars.next().is_some_and(|first| "EWIF".contains(first))
            && chars.take(4).filter(char::is_ascii_digit).count() == 4
    };
    let all: Vec<&str> = lines.split("; ").collect();
    let words: Vec<&str> = all
        .iter()
        .copied()
        .filter(|line| !is_logged(line))
        .collect();
    standing::short(&if words.is_empty() { &all } else { &words }.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_jobs_fit_and_are_never_the_same() {
        let id = attempt_id();
        let whole = format!("tprimat-{}", id.to_lowercase().replace('.', "-"));
        assert_eq!(name_of(&id, 0), whole);
        assert_eq!(name_of(&id, 9999), format!("{whole}-9999"));
        let longer = |id: &str| format!("a-very-long-name-of-a-run-{id}");
        let (one, other) = (longer(&id), longer(&attempt_id()));
        for node in [0, 1, 10, 9999] {
            let name = name_of(&one, node);
            assert!(name.len() <= LONGEST, "{name}");
            assert!(name.starts_with("tprimat-"), "{name}");
            assert_ne!(name, name_of(&other, node));
        }
        let names: std::collections::BTreeSet<String> =
            (0..200).map(|node| name_of(&one, node)).collect();
        assert_eq!(names.len(), 200);
    }
}
