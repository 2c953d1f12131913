//! How the runs of a cell are started: on this host or through Slurm, in a container or not.
//! Nothing of it is in a key but the digest of the image.

use std::path::Path;

use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::Value;

use super::resolve::SettingsReader;
use crate::{
    config::{View, schema, vendor_names},
    error::{Problem, did_you_mean},
    host::EngineKind,
    job::Vendor,
    matrix::Cell,
    recipe::Recipe,
};

/// What is wrong with `--executor`.
pub(super) fn not_an_executor(word: &str) -> Option<Problem> {
    let part = word.split('+').find(|part| Part::named(part).is_none())?;
    let problem = Problem::new(format!("--executor {word}: `{part}` is not an executor"));
    Some(problem.help(instead_of(word, part)))
}

/// The executor that was meant, else all there are.
fn instead_of(word: &str, part: &str) -> String {
    let known = || EXECUTORS.iter().copied();
    did_you_mean(word, known())
        .or_else(|| did_you_mean(part, known()))
        .unwrap_or_else(|| format!("expected {}", EXECUTORS.join(", ")))
}

/// What a word between `+` asks for.
enum Part {
    Place(Place),
    /// A word for an engine is short for `container` with that engine.
    Container(Option<EngineKind>),
}

impl Part {
    fn named(part: &str) -> Option<Self> {
        Some(match part {
            "local" => Self::Place(Place::Local),
            "slurm" => Self::Place(Place::Slurm),
            "allocation" => Self::Place(Place::Allocation),
            "kubernetes" => Self::Place(Place::Kubernetes),
            "container" => Self::Container(None),
            engine => Self::Container(Some(EngineKind::named(engine)?)),
        })
    }
}

/// What `executor` may say, as messages list it; the comment on the setting lists the same.
pub const EXECUTORS: &[&str] = &[
    "local",
    "container",
    "docker",
    "podman",
    "apptainer",
    "slurm",
    "slurm+container",
    "slurm+apptainer",
    "allocation",
    "kubernetes",
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
    /// In the pod of a Job, which is its container.
    Kubernetes,
    /// In the Slurm job that tprimat itself is in: each run is a step of it.
    Allocation,
}

/// How a cell is run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Execution {
    pub place: Place,
    pub container: Option<Container>,
    pub slurm: Slurm,
    pub kubernetes: Kubernetes,
    /// Those that it names.
    pub volumes: Vec<Volume>,
}

impl Execution {
    /// How many runs of one build may be with its batch system at once.
    #[must_use]
    pub fn max_jobs(&self) -> Option<u64> {
        match self.place {
            Place::Kubernetes => self.kubernetes.max_jobs,
            Place::Local | Place::Slurm | Place::Allocation => self.slurm.max_jobs,
        }
    }
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

/// What `sbatch` is told, and what the manifest of a Job says. `None`: nothing, so the cluster's own default
/// holds.
pub use crate::config::schema::{ExecutionKubernetes as Kubernetes, ExecutionSlurm as Slurm};

impl Kubernetes {
    /// What the cluster calls a GPU of this vendor.
    #[must_use]
    pub fn resource_of(&self, vendor: Vendor) -> Option<String> {
        let known = match vendor {
            Vendor::Cpu => return None,
            Vendor::Nvd => "nvidia.com/gpu",
            Vendor::Amd => "amd.com/gpu",
        };
        let stated = self.resource.clone().filter(|name| !name.is_empty());
        Some(stated.unwrap_or_else(|| known.to_owned()))
    }
}

/// A folder of a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// The PersistentVolumeClaim that it is of; `None`: the same folder of the node.
    pub claim: Option<String>,
    pub path: String,
    pub is_read_only: bool,
}

impl Volume {
    /// `CLAIM:/path`, `/path`, each perhaps with `:ro`.
    fn read(text: &str) -> Option<Self> {
        let (place, is_read_only) = match text.strip_suffix(":ro") {
            Some(place) => (place, true),
            None => (text, false),
        };
        let (claim, path) = match place.split_once(':') {
            Some((claim, path)) => (Some(claim.to_owned()), path),
            None => (None, place),
        };
        let is_name = |c: char| c.is_ascii_alphanumeric() || "-.".contains(c);
        let is_claim = |claim: &String| !claim.is_empty() && claim.chars().all(is_name);
        let is_one =
            path.starts_with('/') && !path.contains(':') && claim.as_ref().is_none_or(is_claim);
        is_one.then(|| Self {
            claim,
            path: path.to_owned(),
            is_read_only,
        })
    }
}

/// What `execution` says of a platform, by its id or its vendor: tables in the order of their
/// strength, each with its path. The first one that has a key states it.
struct Stated(Vec<(String, schema::Execution)>);

impl Stated {
    fn of(view: &View<'_>, platform: &str, vendor: Vendor) -> Self {
        let names = std::iter::once(platform).chain(vendor_names(vendor).iter().copied());
        Self(
            names
                .map(|name| (format!("execution.{name}"), view.entry(name)))
                .collect(),
        )
    }

    fn get<T>(&self, key: impl Fn(&schema::Execution) -> Option<T>) -> Option<T> {
        self.0.iter().find_map(|(_, table)| key(table))
    }

    /// All keys of a table.
    fn table<T: Serialize + DeserializeOwned + Default>(
        &self,
        of: impl Fn(&schema::Execution) -> &T,
    ) -> T {
        let mut all = serde_json::Map::new();
        for (_, table) in &self.0 {
            let keys = serde_json::to_value(of(table)).unwrap_or_default();
            for (key, value) in keys.as_object().into_iter().flatten() {
                if !value.is_null() && value.as_object().is_none_or(|table| !table.is_empty()) {
                    all.entry(key).or_insert(value.clone());
                }
            }
        }
        serde_json::from_value(Value::Object(all)).unwrap_or_default()
    }

    /// As [`Stated::get`]; an empty text asks for nothing.
    fn text(&self, key: impl Fn(&schema::Execution) -> &Option<String>) -> Option<String> {
        let text = self.get(|table| key(table).clone());
        text.filter(|text| !text.is_empty())
    }

    /// The executor, as a word; `local` where nobody names one.
    fn executor(&self, recipe: &Recipe) -> String {
        self.get(|table| table.executor.clone())
            .or_else(|| recipe.file.run.executor.clone())
            .unwrap_or_else(|| "local".into())
    }

    /// What `container.engine` says.
    fn engine(&self) -> Option<EngineKind> {
        let name = self.get(|table| table.container.engine.clone())?;
        EngineKind::named(&name)
    }

    /// Where `key` is stated, else where it would be.
    fn place(&self, view: &View<'_>, key: &str) -> String {
        let paths = || self.0.iter().map(|(table, _)| format!("{table}.{key}"));
        paths()
            .find(|path| view.origin(path).is_some())
            .or_else(|| paths().next())
            .unwrap_or_default()
    }

    /// The image: one name for all frameworks of a platform, or one by framework.
    fn image(&self, view: &View<'_>, framework: &str) -> Result<Option<String>, Problem> {
        let images = || {
            self.0
                .iter()
                .map(|(path, table)| (path, &table.container.image))
        };
        let by_framework = images().find_map(|(path, image)| {
            Some((
                format!("{path}.container.image.{framework}"),
                image.get(framework)?,
            ))
        });
        let for_all = || {
            images()
                .find(|(_, image)| image.is_string())
                .map(|(path, image)| (format!("{path}.container.image"), image))
        };
        match by_framework.or_else(for_all) {
            Some((_, Value::String(name))) if is_image_name(name) => Ok(Some(name.clone())),
            Some((path, Value::String(name))) => {
                let message = format!("`{name}` cannot be the name of an image");
                let expected =
                    "expected something like nvcr.io/nvidia/nemo:25.04, or the path of a .sif file";
                Err(view.problem_at(&path, message, expected))
            }
            _ => Ok(None),
        }
    }
}

/// Reads `execution.<platform>`, by the platform's id or its vendor; the more specific one wins key
/// by key.
pub(super) fn execution(
    r: &mut SettingsReader,
    cell: &Cell,
    vendor: Vendor,
    recipe: &Recipe,
) -> Execution {
    let stated = Stated::of(&r.view, &cell.platform, vendor);
    let executor_at = stated.place(&r.view, "executor");
    let word = stated.executor(recipe);
    let (mut place, mut contained, mut engine) = (Place::Local, false, None);
    for part in word.split('+') {
        match Part::named(part) {
            Some(Part::Place(named)) => place = named,
            Some(Part::Container(kind)) => (contained, engine) = (true, kind.or(engine)),
            None => {
                let problem =
                    r.view
                        .problem_at(&executor_at, format!("`{word}` is not an executor"), "here");
                r.push(problem.help(instead_of(&word, part)));
            }
        }
    }
    if place == Place::Kubernetes {
        if word != "kubernetes" {
            let message = format!("`{word}` is not an executor: the pod of a Job is its container");
            r.problem(&executor_at, message, "expected kubernetes");
        }
        (contained, engine) = (true, Some(EngineKind::Kubernetes));
    }
    let container = contained.then(|| Container {
        engine: engine.or_else(|| stated.engine()),
        image: match stated.image(&r.view, &cell.framework) {
            Ok(image) => image.unwrap_or_else(|| default_image(&cell.framework, vendor)),
            Err(problem) => {
                r.push(problem);
                String::new()
            }
        },
        python: stated
            .text(|table| &table.container.python)
            .unwrap_or_else(|| "python3".into()),
        mounts: mounts(r, &stated),
        options: stated
            .get(|table| table.container.options.clone())
            .unwrap_or_default(),
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
    if place == Place::Kubernetes
        && let Ok(Some(image)) = stated.image(&r.view, &cell.framework)
        && !has_digest(&image)
    {
        let path = stated.place(&r.view, "container.image");
        let message = format!(
            "the image of pods needs its digest, which is in the key, and `{image}` has none"
        );
        r.problem(&path, message, "expected NAME@sha256: and 64 digits");
    }
    let kubernetes = stated.table(|table| &table.kubernetes);
    for (key, text) in [("memory", &kubernetes.memory), ("shm", &kubernetes.shm)] {
        if let Some(text) = text.as_ref().filter(|text| !is_quantity(text)) {
            let path = stated.place(&r.view, &format!("kubernetes.{key}"));
            let message = format!("`{text}` is not a quantity of Kubernetes");
            r.problem(&path, message, "expected a number with Mi, Gi or Ti: 512Gi");
        }
    }
    Execution {
        place,
        container,
        slurm: stated.table(|table| &table.slurm),
        volumes: volumes(r, &stated, &kubernetes),
        kubernetes,
    }
}

/// What `execution.<platform>.container.image` says, by the platform's id or its vendor.
pub fn stated_image(
    view: &View<'_>,
    platform: &str,
    vendor: Vendor,
    framework: &str,
) -> Result<Option<String>, Problem> {
    Stated::of(view, platform, vendor).image(view, framework)
}

/// How config.yaml and the recipe put a framework's runs into containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Containment {
    /// `None`: the first of docker, podman and apptainer that is in PATH.
    pub engine: Option<EngineKind>,
    /// The executor starts containers without being asked by `--executor`.
    pub is_default: bool,
}

/// The engine that the runs of a platform are started with, so that images are made and looked at
/// with the same one.
pub fn containment(
    view: &View<'_>,
    platform: &str,
    vendor: Vendor,
    recipe: &Recipe,
) -> Containment {
    let stated = Stated::of(view, platform, vendor);
    let word = stated.executor(recipe);
    // A word that is not an executor is refused where the matrix is read.
    let (mut engine, mut is_default) = (None, false);
    for part in word.split('+').filter_map(Part::named) {
        if let Part::Container(kind) = part {
            (engine, is_default) = (kind.or(engine), true);
        }
    }
    Containment {
        engine: engine.or_else(|| stated.engine()),
        is_default,
    }
}

/// What brings an image to this host, in words. `file`: where it is opened, if runs open it as a
/// file.
#[must_use]
pub fn how_to_get(
    image: &str,
    file: Option<&Path>,
    (platform, framework, vendor): (&str, &str, Vendor),
) -> String {
    let target = format!("{framework} --platform {platform}");
    if let Some(file) = file {
        format!(
            "runs open it as the file {}: copy it there, or name another one in execution.{platform}.container.image",
            file.display()
        )
    } else if image == default_image(framework, vendor) {
        format!("`tprimat container build {target}` makes it")
    } else {
        format!(
            "`tprimat container pull {target}` fetches it, `tprimat container build {target} --tag {image}` makes one of this name"
        )
    }
}

/// The name under which `tprimat container build` leaves a framework's image.
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

fn volumes(r: &mut SettingsReader, stated: &Stated, kubernetes: &Kubernetes) -> Vec<Volume> {
    let mut volumes = Vec::new();
    for text in kubernetes.volumes.iter().flatten() {
        match Volume::read(text) {
            Some(volume) => volumes.push(volume),
            None => {
                let path = stated.place(&r.view, "kubernetes.volumes");
                let problem = r
                    .view
                    .problem_at(&path, format!("`{text}` is not a volume"), "here");
                let help = "expected CLAIM:/path of a PersistentVolumeClaim, or /path of each node, with :ro behind it where it is only read";
                r.push(Problem::help(problem, help));
            }
        }
    }
    volumes
}

/// Each node fetches the image by its name, which must therefore say what is fetched.
fn has_digest(image: &str) -> bool {
    let digest = image.split_once("@sha256:").map(|(_, digest)| digest);
    digest.is_some_and(|digest| digest.len() == 64 && digest.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Bytes as the API server reads them: `512Gi`, `1.5T`.
fn is_quantity(text: &str) -> bool {
    // A number without a unit would be bytes, which nobody means.
    const UNITS: [&str; 6] = ["M", "G", "T", "Mi", "Gi", "Ti"];
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = text.strip_prefix(number).unwrap_or_default();
    number.parse::<f64>().is_ok_and(|number| number > 0.0) && UNITS.contains(&unit)
}

fn mounts(r: &mut SettingsReader, stated: &Stated) -> Vec<String> {
    let mounts = stated.get(|table| table.container.mounts.clone());
    let mounts = mounts.unwrap_or_default();
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
            let path = stated.place(&r.view, "container.mounts");
            let problem = r
                .view
                .problem_at(&path, format!("`{mount}` is not a mount"), "here");
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
    fn a_quantity_of_memory_has_a_unit_of_kubernetes() {
        for (text, is_one) in [
            ("512Gi", true),
            ("1.5T", true),
            ("1024", false),
            ("512GB", false),
            ("512 Gi", false),
            ("Gi", false),
            ("0", false),
        ] {
            assert_eq!(is_quantity(text), is_one, "{text}");
        }
    }

    #[test]
    fn every_executor_is_read_offered_and_described() {
        let schema = schemars::schema_for!(schema::Execution);
        let described = schema.as_value()["properties"]["executor"]["description"]
            .as_str()
            .unwrap();
        for word in EXECUTORS {
            assert!(
                word.split('+').all(|part| Part::named(part).is_some()),
                "{word}"
            );
            assert!(
                described.contains(&format!("`{word}`")),
                "{word}: {described}"
            );
        }
        let slip = not_an_executor("slurm+aptainer").unwrap();
        assert_eq!(
            slip.help.as_deref(),
            Some("did you mean `slurm+apptainer`?")
        );
        let slip = not_an_executor("slrum").unwrap();
        assert_eq!(slip.help.as_deref(), Some("did you mean `slurm`?"));
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
