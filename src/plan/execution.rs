//! How the runs of a cell are started: on this host or through Slurm, in a container or not.
//! Nothing of it is in a key but the digest of the image.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::resolve::{SettingsReader, strings};
use crate::{
    config::{View, vendor_names},
    error::{Problem, did_you_mean},
    host::EngineKind,
    job::Vendor,
    matrix::Cell,
    recipe::Recipe,
};

/// What is wrong with `--executor`.
pub(super) fn not_an_executor(word: &str) -> Option<Problem> {
    const PLACES: [&str; 4] = ["local", "slurm", "allocation", "container"];
    let is_known = |part: &str| PLACES.contains(&part) || EngineKind::named(part).is_some();
    let part = word.split('+').find(|part| !is_known(part))?;
    let near = did_you_mean(part, EXECUTORS.iter().copied());
    let problem = Problem::new(format!("--executor {word}: `{part}` is not an executor"));
    Some(problem.help(near.unwrap_or_else(|| format!("expected {}", EXECUTORS.join(", ")))))
}

/// What `executor` may say. A word for an engine is short for `container` with that engine.
pub const EXECUTORS: &[&str] = &[
    "local",
    "container",
    "docker",
    "podman",
    "apptainer",
    "slurm",
    "slurm+container",
    "allocation",
];

/// Where the supervisor of a run lives.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// On this host, as a child of tprimat.
    #[default]
    Local,
    /// In a batch job.
    Slurm,
    /// In the Slurm job that tprimat itself is in: each run is a step of it.
    Allocation,
}

/// How a cell is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub place: Place,
    pub container: Option<Container>,
    pub slurm: Slurm,
}

/// The container that a run is started in.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Container {
    /// `None`: the first of docker, podman and apptainer that is in PATH.
    pub engine: Option<EngineKind>,
    /// As the engine knows it; of Apptainer the path of a `.sif` file, from the project's root.
    pub image: String,
    /// The Python inside.
    pub python: String,
    /// More folders of the host, as `HOST`, `HOST:INSIDE` or `HOST:INSIDE:ro`.
    pub mounts: Vec<String>,
    /// More arguments of the engine.
    pub options: Vec<String>,
}

/// What `sbatch` is told. `None`: nothing, so the cluster's own default holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Slurm {
    pub account: Option<String>,
    pub partition: Option<String>,
    pub qos: Option<String>,
    pub constraint: Option<String>,
    /// `None`: `gpu:N` for a job of N GPUs. Empty: none is asked for.
    pub gres: Option<String>,
    pub time: Option<String>,
    /// CPU cores of each job.
    pub cpus: Option<u64>,
    pub exclusive: bool,
    /// More options of `sbatch`.
    pub options: Vec<String>,
    /// How many jobs of one build may be in the queue at once.
    pub max_jobs: Option<u64>,
    /// Cancel the jobs on Ctrl-C. Otherwise they go on, and the next build takes them up.
    pub cancel_on_interrupt: bool,
}

/// Reads `execution.<platform>`, by the platform's id or its vendor; the more specific one wins key
/// by key.
pub(super) fn execution(
    r: &mut SettingsReader,
    cell: &Cell,
    vendor: Vendor,
    recipe: &Recipe,
) -> Execution {
    let tables = tables(&cell.platform, vendor);
    // A problem points at the key that is stated, else at where it would be.
    let at = |r: &SettingsReader, key: &str| {
        let paths = || tables.iter().map(|table| format!("{table}.{key}"));
        paths()
            .find(|path| r.view.get(path).is_some())
            .unwrap_or_else(|| format!("{}.{key}", tables[0]))
    };
    let text = |r: &mut SettingsReader, key: &str| {
        let path = at(r, key);
        r.string(&path).filter(|text| !text.is_empty())
    };
    let executor_at = at(r, "executor");
    let word = r
        .string(&executor_at)
        .or_else(|| recipe.file.run.executor.clone())
        .unwrap_or_else(|| "local".into());
    let (mut place, mut contained, mut engine) = (Place::Local, false, None);
    for part in word.split('+') {
        match (part, EngineKind::named(part)) {
            ("local", _) => place = Place::Local,
            ("slurm", _) => place = Place::Slurm,
            ("allocation", _) => place = Place::Allocation,
            ("container", _) => contained = true,
            (_, Some(kind)) => (contained, engine) = (true, Some(kind)),
            _ => {
                let problem =
                    r.view
                        .problem_at(&executor_at, format!("`{word}` is not an executor"), "here");
                let near = did_you_mean(part, EXECUTORS.iter().copied());
                r.push(
                    problem
                        .help(near.unwrap_or_else(|| format!("expected {}", EXECUTORS.join(", ")))),
                );
            }
        }
    }
    let flag = |r: &mut SettingsReader, key: &str| {
        let path = at(r, key);
        r.bool(&path).unwrap_or(false)
    };
    let list = |r: &SettingsReader, key: &str| strings(r.view.get(&at(r, key)));
    let container = contained.then(|| Container {
        engine: engine.or_else(|| engine_of(r, &at(r, "container.engine"))),
        image: image(r, cell, vendor),
        python: text(r, "container.python").unwrap_or_else(|| "python3".into()),
        mounts: mounts(r, &at(r, "container.mounts")),
        options: list(r, "container.options"),
    });
    if let Some(container) = container.as_ref().filter(|_| place == Place::Local)
        && container.engine == Some(EngineKind::Pyxis)
    {
        r.problem(
            &executor_at,
            "pyxis starts containers in Slurm jobs only".into(),
            "expected slurm+container",
        );
    }
    let gres_at = at(r, "slurm.gres");
    let jobs_at = at(r, "slurm.max_jobs");
    let cpus_at = at(r, "slurm.cpus");
    let slurm = Slurm {
        account: text(r, "slurm.account"),
        partition: text(r, "slurm.partition"),
        qos: text(r, "slurm.qos"),
        constraint: text(r, "slurm.constraint"),
        gres: r.string(&gres_at),
        time: text(r, "slurm.time"),
        cpus: r.u64(&cpus_at),
        exclusive: flag(r, "slurm.exclusive"),
        options: list(r, "slurm.options"),
        max_jobs: r.u64(&jobs_at),
        cancel_on_interrupt: flag(r, "slurm.cancel_on_interrupt"),
    };
    Execution {
        place,
        container,
        slurm,
    }
}

fn engine_of(r: &mut SettingsReader, path: &str) -> Option<EngineKind> {
    let name = r.string(path)?;
    let kind = EngineKind::named(&name);
    if kind.is_none() {
        let known: Vec<&str> = EngineKind::ALL.iter().map(|kind| kind.name()).collect();
        r.problem(
            path,
            format!("`{name}` is not a container engine"),
            &format!("expected {}", known.join(", ")),
        );
    }
    kind
}

fn image(r: &mut SettingsReader, cell: &Cell, vendor: Vendor) -> String {
    match stated_image(&r.view, &cell.platform, vendor, &cell.framework) {
        Ok(stated) => stated.unwrap_or_else(|| default_image(&cell.framework, vendor)),
        Err(problem) => {
            r.push(problem);
            String::new()
        }
    }
}

/// What `execution.<platform>.container.image` says, by the platform's id or its vendor: one name
/// for all frameworks of a platform, or one by framework.
pub fn stated_image(
    view: &View<'_>,
    platform: &str,
    vendor: Vendor,
    framework: &str,
) -> Result<Option<String>, Problem> {
    let paths = || {
        tables(platform, vendor)
            .into_iter()
            .map(|table| format!("{table}.container.image"))
    };
    let by_framework = paths().map(|path| format!("{path}.{framework}"));
    match by_framework
        .chain(paths())
        .find_map(|path| Some((view.get(&path)?, path)))
    {
        Some((Value::String(name), _)) if is_image_name(name) => Ok(Some(name.clone())),
        Some((Value::String(name), path)) => {
            let message = format!("`{name}` cannot be the name of an image");
            let expected =
                "expected something like nvcr.io/nvidia/nemo:25.04, or the path of a .sif file";
            Err(view.problem_at(&path, message, expected))
        }
        _ => Ok(None),
    }
}

/// Where a platform's execution may be stated, the more specific one first.
fn tables(platform: &str, vendor: Vendor) -> Vec<String> {
    let names = std::iter::once(platform).chain(vendor_names(vendor).iter().copied());
    names.map(|name| format!("execution.{name}")).collect()
}

/// The name under which `tprimat image build` leaves a framework's image.
#[must_use]
pub fn default_image(framework: &str, vendor: Vendor) -> String {
    format!("tprimat/{framework}:{}", vendor.name())
}

/// Is this name one word of a command line, and not an option?
#[must_use]
pub fn is_image_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with('-')
        && name
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || "._/:@-+".contains(c))
}

fn mounts(r: &mut SettingsReader, path: &str) -> Vec<String> {
    let mounts = strings(r.view.get(path));
    for mount in &mounts {
        let parts: Vec<&str> = mount.split(':').collect();
        let (folders, mode) = match parts.as_slice() {
            [folders @ .., "ro" | "rw"] => (folders, true),
            folders => (folders, false),
        };
        let are_absolute = folders
            .iter()
            .all(|folder| Path::new(folder).is_absolute() && !folder.contains(','));
        if !are_absolute || folders.is_empty() || folders.len() > 2 || (mode && folders.len() != 2)
        {
            let problem = r
                .view
                .problem_at(path, format!("`{mount}` is not a mount"), "here");
            let help = "expected /on/the/host, /on/the/host:/inside or /on/the/host:/inside:ro";
            r.push(Problem::help(problem, help));
        }
    }
    mounts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_image_name_is_one_word_and_no_option() {
        for name in [
            "busybox",
            "nvcr.io/nvidia/nemo:25.04",
            "a@sha256:00ff",
            "/images/nemo.sif",
            "localhost:5000/a-b_c",
        ] {
            assert!(is_image_name(name), "{name}");
        }
        for name in ["", "-x", "a b", "a\nb", "$(x)", "a;b", "a,b"] {
            assert!(!is_image_name(name), "{name}");
        }
    }

    #[test]
    fn singularity_is_apptainer_and_srun_is_no_engine_by_its_own_name() {
        assert_eq!(
            EngineKind::named("singularity"),
            Some(EngineKind::Apptainer)
        );
        assert_eq!(EngineKind::named("srun"), None);
        assert_eq!(EngineKind::named("pyxis"), Some(EngineKind::Pyxis));
    }
}
