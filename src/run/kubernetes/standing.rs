//! What a Job and its pods say, in people's words. The Job alone does not tell: it stays active while an
//! image cannot be pulled and while no node has a GPU free.

use serde_json::Value;

use crate::run::{spec::ExitKind, system::Shown};

/// How long a pod waits for an image or a file that is not there before its run is given up, in
/// seconds: a registry may be away for a while.
const HOPE: f64 = 300.0;
/// After so many seconds without a container the events are asked why.
const QUIET: f64 = 20.0;
/// Why a container waits whose image is not there.
const IMAGE: [&str; 4] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
];
/// What runtimes and registries say of an image that they looked for and do not have: the digest names its
/// content, so no later try finds it.
const ABSENT: [&str; 3] = [
    ": not found",
    "manifest unknown",
    "repository does not exist",
];
/// How long after the end of its grace a pod that is being deleted may still record the run's end, in
/// seconds. That of a lost node stays there for as long as the node does.
const DELETED: f64 = 30.0;

/// The end of what is told of a pod whose node does not answer.
pub(super) const SILENT: &str = "does not answer";

/// The state of a Job whose node is lost.
const LOST: &str = "lost";

pub(super) struct Standing {
    pub shown: Shown,
    /// Nothing here says what it waits for; the events of this object may.
    pub explained_by_events_of: Option<String>,
    /// The node of a pod that does not answer; what the cluster says of the node tells why.
    pub silent_node: Option<String>,
    /// The image that cannot be had.
    pub absent_image: Option<String>,
}

/// How the Jobs of these names stand as one. The last one is that of node 0, whose end is the run's.
pub(super) fn of_all(names: &[String], jobs: &[&Value], pods: &[&Value], now: f64) -> Standing {
    let each = names.iter().map(|name| {
        let job = jobs.iter().find(|job| text(job, "/metadata/name") == name);
        // A pod is called as its Job, with random letters behind a dash.
        let job_of = |pod: &Value| {
            text(pod, "/metadata/name")
                .rsplit_once('-')
                .map(|(job, _)| job.to_owned())
        };
        let is_own = |pod: &&&Value| job_of(pod).is_some_and(|job| job == *name);
        let own: Vec<&Value> = pods.iter().filter(is_own).copied().collect();
        of(job.copied(), &own, now)
    });
    let mut each: Vec<Standing> = each.collect();
    let of_nodes = each.iter().filter_map(|one| one.shown.nodes.clone());
    let nodes: Vec<String> = of_nodes.rev().collect();
    let any = |is: fn(&Shown) -> bool| each.iter().any(|one| is(&one.shown));
    let (is_silent, is_hopeless) = (any(|one| one.is_silent), any(|one| one.is_hopeless));
    let fate = each.iter().find_map(|one| one.shown.fate.clone());
    let silent_node = each.iter().find_map(|one| one.silent_node.clone());
    let absent_image = each.iter().find_map(|one| one.absent_image.clone());
    // Whichever keeps the run waiting is what is told, else whichever goes on.
    let waits = |one: &Standing| {
        let is_well = one.shown.state == "running" && one.shown.reason.is_empty();
        !one.shown.is_over && !is_well
    };
    // Without one of its nodes a run is over, whatever the others do.
    let lost = each.iter().position(|one| one.shown.state == LOST);
    let told = lost.or_else(|| each.iter().position(waits));
    let told = told.or_else(|| each.iter().position(|one| !one.shown.is_over));
    let Some(last) = each.len().checked_sub(1) else {
        return of(None, &[], now);
    };
    let ended_well = each[last].shown.ended_well;
    let mut one = each.swap_remove(told.unwrap_or(last));
    one.shown = Shown {
        nodes: Some(nodes.join(",")).filter(|nodes| !nodes.is_empty()),
        is_silent,
        is_hopeless,
        ended_well,
        fate,
        ..one.shown
    };
    Standing {
        silent_node,
        absent_image,
        ..one
    }
}

/// How the loss of a node is told.
pub(super) fn loss_of(node: &str) -> String {
    format!("Kubernetes: node {node} was lost")
}

/// What a cluster says of a node that does not answer; `None`: it does.
pub(super) fn said_of_node(node: &Value) -> Option<String> {
    if status_of(node, "Ready") == "True" {
        return None;
    }
    let ready = all(node, "/status/conditions").find(|one| text(one, "/type") == "Ready");
    let said = ready.map_or("", |ready| text(ready, "/message"));
    Some(match said {
        "" => "it is not ready".to_owned(),
        said => short(said),
    })
}

/// `now`: seconds since 1970.
fn of(job: Option<&Value>, pods: &[&Value], now: f64) -> Standing {
    let name = |of: &Value| text(of, "/metadata/name").to_owned();
    let node = |pod: &Value| Some(text(pod, "/spec/nodeName").to_owned()).filter(|n| !n.is_empty());
    let mut pods = pods.to_vec();
    pods.sort_by_key(|pod| text(pod, "/metadata/creationTimestamp"));
    let mut shown = Shown {
        nodes: pods.iter().find_map(|pod| node(pod)),
        fate: pods.iter().find_map(|pod| fate_of(pod)),
        ..Shown::default()
    };
    let is_alive = |pod: &&&Value| !is_over(pod) && !is_past(pod, now);
    let alive: Vec<&Value> = pods.iter().filter(is_alive).copied().collect();
    // Kubernetes gave such a pod up long ago, and its node has not said that it is gone.
    let lost = pods.iter().find(|pod| !is_over(pod) && is_past(pod, now));
    let silent = pods.iter().find(|pod| is_silent(pod)).or(lost);
    let silent_node = silent.and_then(|pod| node(pod)).unwrap_or_default();
    if silent.is_some_and(|pod| is_silent(pod)) {
        (shown.fate).get_or_insert(ExitKind::Lost(loss_of(&silent_node)));
    } else if lost.is_some() {
        let why = "Kubernetes: the pod was told to end and has not; its node";
        let lost = ExitKind::Lost(format!("{why} {silent_node} may be lost"));
        shown.fate.get_or_insert(lost);
    }
    let mut standing = Standing {
        explained_by_events_of: None,
        silent_node: silent.map(|_| silent_node),
        absent_image: None,
        shown,
    };
    let shown = &mut standing.shown;
    let Some(job) = job else {
        let deleted = "Kubernetes: the Job was deleted".to_owned();
        shown.fate.get_or_insert(ExitKind::Killed(deleted));
        shown.is_over = alive.is_empty();
        shown.state = if alive.is_empty() { "" } else { "ending" }.to_owned();
        return standing;
    };
    let (complete, failed) = (condition(job, "Complete"), condition(job, "Failed"));
    let runs = |pod: &&Value| text(pod, "/status/phase") == "Running";
    // A second pod, which has to wait for a node, must not keep the run waiting.
    let is_given_up = complete.is_none() && failed.is_none() && !alive.iter().any(runs);
    if lost.is_some() && is_given_up {
        (shown.is_over, shown.state) = (true, LOST.to_owned());
        return standing;
    }
    shown.ended_well = complete.is_some();
    if let Some(end) = complete.or(failed).filter(|_| alive.is_empty()) {
        shown.is_over = true;
        shown.state = if complete.is_some() {
            "complete"
        } else {
            "failed"
        }
        .to_owned();
        shown.reason = short(text(end, "/message"));
        if text(end, "/reason") == "DeadlineExceeded" {
            shown.fate.get_or_insert(ExitKind::Timeout);
        }
    } else if let Some(pod) = alive.iter().find(|pod| is_silent(pod)).or(alive.last()) {
        let age = age(pod, "/status/startTime", now);
        (shown.state, shown.reason) = doing(pod);
        shown.is_silent = is_silent(pod);
        let (waits_for, said) = waiting(pod).unwrap_or_default();
        let is_absent = ABSENT.iter().any(|words| said.contains(words));
        shown.is_hopeless = match waits_for {
            "" | "ContainerCreating" | "PodInitializing" => false,
            "InvalidImageName" | "ErrImageNeverPull" => true,
            "ErrImagePull" | "ImagePullBackOff" if is_absent => true,
            _ => age > HOPE,
        };
        if shown.is_hopeless && IMAGE.contains(&waits_for) {
            standing.absent_image = Some(text(pod, "/spec/containers/0/image").to_owned());
        }
        let is_quiet = shown.reason.is_empty() && shown.state == "pending" && age > QUIET;
        standing.explained_by_events_of = is_quiet.then(|| name(pod));
    } else if job.pointer("/spec/suspend") == Some(&Value::Bool(true)) {
        shown.state = "suspended".to_owned();
        shown.reason = match text(job, "/metadata/labels/kueue.x-k8s.io~1queue-name") {
            "" => "somebody suspended it".to_owned(),
            queue => format!("the queue {queue} has not admitted it yet"),
        };
    } else {
        shown.state = "pending".to_owned();
        shown.reason = "it has no pod yet".to_owned();
        standing.explained_by_events_of = Some(name(job));
    }
    standing
}

/// The state of a pod that is not over, and why it is in it.
fn doing(pod: &Value) -> (String, String) {
    let phase = text(pod, "/status/phase").to_lowercase();
    if phase == "running" {
        let silent = || format!("its node {} {SILENT}", text(pod, "/spec/nodeName"));
        return (phase, is_silent(pod).then(silent).unwrap_or_default());
    }
    if let Some(refused) = all(pod, "/status/conditions")
        .find(|one| text(one, "/type") == "PodScheduled" && text(one, "/status") == "False")
    {
        let why = short(text(refused, "/message"));
        return (phase, format!("no node takes it: {why}"));
    }
    let reason = match waiting(pod) {
        Some((reason, said)) if IMAGE.contains(&reason) => {
            // The reason is at the end of what the runtime says, behind the image's name.
            let why = said.rsplit("\": ").next().filter(|why| *why != said);
            let image = text(pod, "/spec/containers/0/image");
            let bare = |why: &str| short(why).replace(&format!("{image}: "), "");
            let why = why.map_or(reason.to_owned(), |why| format!("{reason}: {}", bare(why)));
            format!("the image {image} cannot be pulled ({why})")
        }
        Some(("ContainerCreating" | "PodInitializing", _)) | None => String::new(),
        Some((reason, said)) => format!("{reason}: {}", short(said)),
    };
    (phase, reason)
}

/// How the cluster ended the run of a pod; `None`: the run ended by itself, or goes on.
fn fate_of(pod: &Value) -> Option<ExitKind> {
    let disruption = condition(pod, "DisruptionTarget");
    let reasons = [
        text(pod, "/status/reason"),
        disruption.map_or("", |one| text(one, "/reason")),
    ];
    let message = match text(pod, "/status/message") {
        "" => disruption.map_or("", |one| text(one, "/message")),
        said => said,
    };
    let said = |what: &str| match message {
        "" => format!("Kubernetes: {what}"),
        message => format!("Kubernetes: {what}: {}", short(message)),
    };
    let node = text(pod, "/spec/nodeName");
    for reason in reasons {
        match reason {
            "Evicted" | "EvictionByEvictionAPI" => {
                return Some(ExitKind::Killed(said("the pod was evicted")));
            }
            "Preempting" | "PreemptionByScheduler" => {
                return Some(ExitKind::Killed(said("the pod was preempted")));
            }
            "DeadlineExceeded" => return Some(ExitKind::Timeout),
            "NodeLost"
            | "NodeShutdown"
            | "Shutdown"
            | "Terminated"
            | "TerminationByKubelet"
            | "DeletionByTaintManager"
            | "DeletionByPodGC" => {
                return Some(ExitKind::Lost(said(&format!("node {node} was lost"))));
            }
            "UnexpectedAdmissionError" => {
                let refused = format!("node {node} refused the pod");
                return Some(ExitKind::Lost(said(&refused)));
            }
            _ => {}
        }
    }
    let ended = all(pod, "/status/containerStatuses")
        .chain(all(pod, "/status/initContainerStatuses"))
        .filter_map(|one| one.pointer("/state/terminated"));
    for end in ended {
        match text(end, "/reason") {
            "OOMKilled" => {
                let limit = text(pod, "/spec/containers/0/resources/limits/memory");
                let limit = match limit {
                    "" => "its node has".to_owned(),
                    limit => format!("its limit of {limit}"),
                };
                return Some(ExitKind::Killed(format!(
                    "Kubernetes: out of memory: the pod needed more than {limit} (execution.<platform>.kubernetes.memory)"
                )));
            }
            "StartError" | "ContainerCannotRun" => {
                let why = short(text(end, "/message"));
                return Some(ExitKind::LaunchFailed(format!(
                    "Kubernetes could not start the container: {why}"
                )));
            }
            _ => {}
        }
    }
    None
}

/// Does nobody answer for it? The cluster then says that the pod is not ready; its container, of which the node
/// spoke last, still is.
fn is_silent(pod: &Value) -> bool {
    let is_not_ready = ["False", "Unknown"].contains(&status_of(pod, "Ready"));
    let container = pod.pointer("/status/containerStatuses/0/state/running");
    is_not_ready && text(pod, "/status/phase") == "Running" && container.is_some()
}

fn is_over(pod: &Value) -> bool {
    ["Succeeded", "Failed"].contains(&text(pod, "/status/phase"))
}

/// Is it gone for all that counts: deleted, and beyond the end of its grace?
fn is_past(pod: &Value, now: f64) -> bool {
    seconds(text(pod, "/metadata/deletionTimestamp")).is_some_and(|end| now > end + DELETED)
}

/// What a container waits for, and the words for it.
fn waiting(pod: &Value) -> Option<(&str, &str)> {
    let containers =
        all(pod, "/status/initContainerStatuses").chain(all(pod, "/status/containerStatuses"));
    let mut waiting = containers.filter_map(|one| one.pointer("/state/waiting"));
    waiting
        .next()
        .map(|state| (text(state, "/reason"), text(state, "/message")))
}

/// A condition that is met.
fn condition<'a>(of: &'a Value, kind: &str) -> Option<&'a Value> {
    all(of, "/status/conditions")
        .find(|one| text(one, "/type") == kind && text(one, "/status") == "True")
}

fn status_of<'a>(of: &'a Value, kind: &str) -> &'a str {
    let found = all(of, "/status/conditions").find(|one| text(one, "/type") == kind);
    found.map_or("", |one| text(one, "/status"))
}

fn all<'a>(of: &'a Value, path: &str) -> impl Iterator<Item = &'a Value> {
    of.pointer(path)
        .and_then(Value::as_array)
        .into_iter()
        .flatten()
}

fn text<'a>(of: &'a Value, path: &str) -> &'a str {
    of.pointer(path).and_then(Value::as_str).unwrap_or_default()
}

fn seconds(timestamp: &str) -> Option<f64> {
    let time: jiff::Timestamp = timestamp.parse().ok()?;
    Some(time.as_millisecond() as f64 / 1000.0)
}

fn age(of: &Value, since: &str, now: f64) -> f64 {
    seconds(text(of, since)).map_or(0.0, |then| now - then)
}

/// Messages of clusters name every node.
pub(super) fn short(message: &str) -> String {
    const MOST: usize = 300;
    let line = message.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.chars().count() <= MOST {
        return line;
    }
    let begin: String = line.chars().take(MOST).collect();
    format!("{begin}…")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a recorded answer is read, so many seconds after its pod was made.
    fn read(answer: &str, after: f64) -> Standing {
        let list: Value = serde_json::from_str(answer).unwrap();
        let of_kind = |kind: &str| {
            let items = list["items"].as_array().unwrap().iter();
            items
                .filter(|item| item["kind"] == *kind)
                .collect::<Vec<_>>()
        };
        let pods = of_kind("Pod");
        let made = seconds(text(pods[0], "/metadata/creationTimestamp")).unwrap();
        of(of_kind("Job").first().copied(), &pods, made + after)
    }

    macro_rules! answer {
        ($name:literal) => {
            include_str!(concat!(
                "../../../tests/fixtures/kubernetes/",
                $name,
                ".json"
            ))
        };
    }

    #[test]
    fn a_job_that_is_active_is_told_by_its_pod() {
        let node = read(answer!("no-node"), 60.0).shown;
        assert_eq!(
            (node.state.as_str(), node.is_over, node.is_hopeless),
            ("pending", false, false)
        );
        assert_eq!(
            node.reason,
            "no node takes it: 0/1 nodes are available: 1 Insufficient memory."
        );
        let image = |after| read(answer!("no-image"), after).shown;
        assert!(
            image(60.0)
                .reason
                .contains("cannot be pulled (ErrImagePull: ")
        );
        assert!(!image(60.0).is_hopeless && image(400.0).is_hopeless);
        let running = read(answer!("running"), 1e6).shown;
        assert_eq!(
            (running.state.as_str(), running.reason.as_str()),
            ("running", "")
        );
        assert!(!running.is_silent && !running.is_over && !running.is_hopeless);
        assert_eq!(running.nodes.as_deref(), Some("node1"));
        let lost = answer!("node-lost");
        let lost = read(lost, 60.0).shown;
        assert!(lost.is_silent && !lost.is_over, "{lost:?}");
    }

    /// Kubernetes started a second pod elsewhere, which found that the run had begun and failed.
    #[test]
    fn the_node_of_the_first_pod_is_the_one_that_is_lost() {
        let answer = answer!("node-lost-replaced");
        let early = read(answer, 60.0).shown;
        assert!(
            early.is_silent && !early.is_over,
            "it may come back: {early:?}"
        );
        let standing = read(answer, 80.0);
        assert!(standing.shown.is_over && !standing.shown.ended_well);
        assert_eq!(standing.shown.nodes.as_deref(), Some("n2"));
        assert_eq!(standing.silent_node.as_deref(), Some("n2"));
        let lost = ExitKind::Lost("Kubernetes: node n2 was lost".to_owned());
        assert_eq!(standing.shown.fate, Some(lost));
        let node: Value = serde_json::from_str(answer!("node-not-ready")).unwrap();
        let said = said_of_node(&node);
        assert_eq!(
            said.as_deref(),
            Some("Kubelet stopped posting node status.")
        );
        let well = answer!("node-not-ready").replace("\"Unknown\"", "\"True\"");
        assert_eq!(said_of_node(&serde_json::from_str(&well).unwrap()), None);
    }

    #[test]
    fn an_image_that_its_registry_does_not_have_is_not_waited_for() {
        let answer = answer!("no-image");
        let why = ": i/o timeout\"";
        assert!(answer.contains(why) && !read(answer, 60.0).shown.is_hopeless);
        let absent = answer.replace(why, ": not found\"");
        let standing = read(&absent, 60.0);
        assert!(standing.shown.is_hopeless);
        assert!(
            standing
                .absent_image
                .is_some_and(|image| image.starts_with("registry.invalid/"))
        );
    }

    #[test]
    fn who_ended_a_run_is_told_apart() {
        let fate = |answer: &str| {
            let shown = read(answer, 60.0).shown;
            assert!(shown.is_over, "{shown:?}");
            shown.fate
        };
        assert!(
            matches!(fate(answer!("out-of-memory")), Some(ExitKind::Killed(why)) if why.contains("its limit of 256Mi"))
        );
        assert!(
            matches!(fate(answer!("cannot-start")), Some(ExitKind::LaunchFailed(why)) if why.contains("/no/such/tprimat"))
        );
        assert_eq!(fate(answer!("supervisor-killed")), None);
        for (reason, is_lost) in [
            ("Evicted", false),
            ("Preempting", false),
            ("NodeLost", true),
        ] {
            let answer = answer!("supervisor-killed")
                .replace("\"phase\"", &format!("\"reason\": {reason:?}, \"phase\""));
            let told = fate(&answer).unwrap();
            assert_eq!(matches!(told, ExitKind::Lost(_)), is_lost, "{told:?}");
        }
    }

    /// Kubernetes makes a second pod as soon as the first one is told to end, and this one fails.
    #[test]
    fn a_pod_that_is_being_deleted_has_its_grace_to_record_the_end() {
        let running = answer!("pod-deleted").replacen("\"Succeeded\"", "\"Running\"", 1);
        assert!(!read(&running, 30.0).shown.is_over);
        let second_is_over = running.replace("\"Pending\"", "\"Failed\"");
        assert!(
            !read(&second_is_over, 30.0).shown.is_over,
            "the first one is not"
        );
        assert!(
            read(&second_is_over, 200.0).shown.is_over,
            "its node is gone"
        );
        // No node is left for the second pod, and nobody waits for one.
        let second_waits = running.replace("\"Complete\"", "\"Suspended\"");
        let shown = read(&second_waits, 200.0).shown;
        assert!(
            shown.is_over && matches!(shown.fate, Some(ExitKind::Lost(_))),
            "{shown:?}"
        );
    }
}
