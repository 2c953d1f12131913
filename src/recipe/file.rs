//! recipe.toml, key by key. docs/recipes.md explains them to those who write one.

use std::{borrow::Cow, collections::BTreeMap, fmt};

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{
    Deserialize, Deserializer, Serialize, Serializer,
    de::{self, Visitor},
};

use super::Constraint;
use crate::{job::Vendor, logs::LogSection};

/// recipe.toml.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RecipeFile {
    pub id: String,
    /// What really runs, in a line.
    pub name: String,
    pub vendors: Vec<Vendor>,
    /// What a shipped framework is called besides its id. Names of a project's own recipes are their
    /// folders' names only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub aliases: Vec<String>,
    pub launch: Launch,
    /// Declared environment of one vendor, over `launch.env`; part of the key.
    #[serde(default)]
    pub env: BTreeMap<Vendor, BTreeMap<String, String>>,
    /// Base image of a vendor's container.
    #[serde(default)]
    pub image: BTreeMap<Vendor, String>,
    #[serde(default)]
    pub lock: LockNeeds,
    #[serde(default)]
    pub require: Require,
    pub log: LogSection,
    /// What it keeps on a GPU; without this section `fit` predicts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<MemorySection>,
    #[serde(default)]
    pub run: RunSection,
    /// Names of refusals in recipes/lib/refusals.toml; loading a recipe puts them before its own.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub refuses: Vec<String>,
    #[serde(default)]
    pub unsupported: Vec<Constraint>,
    /// Fields of the job that change nothing about a run of this recipe.
    #[serde(default)]
    pub ignored: Vec<Ignored>,
    /// Paths of config.yaml that may be absent for this framework, though others need them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub optional: Vec<String>,
    /// Defaults for config.yaml paths, under every other layer.
    #[serde(default)]
    pub defaults: BTreeMap<String, serde_json::Value>,
}

/// A field of the job, by its dotted path, that this recipe may leave unread, and why.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Ignored {
    pub field: String,
    pub reason: String,
}

#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Launch {
    /// Template files, from the recipe folder or templates/; rendered into the run folder without
    /// `.j2`.
    pub templates: Vec<String>,
    /// Files of recipes/lib that the recipe's own program imports: copied beside it, and part of
    /// the key as its own are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub library: Vec<String>,
    /// The command, run in the run folder.
    pub command: Vec<String>,
    /// Hand the whole job over as `$TPRIMAT_JOB`. A recipe that does not reads job fields through
    /// its templates only.
    #[serde(default)]
    pub reads_job: bool,
    /// The keys that `frameworks.<id>` may have, beside those of every framework; `*` or absent =
    /// others too, unless one looks like a mistyped key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub options: Option<Vec<String>>,
    /// May run beside other runs.
    #[serde(default)]
    pub share: bool,
    /// Its launch files can start a run on several nodes: the command runs once on each node, with
    /// `TPRIMAT_NODE_RANK`, `TPRIMAT_MASTER_ADDR` and `TPRIMAT_PORT`. `true`: the first rank prints
    /// the steps; `"last"`: the last rank does, so the node whose log is read gets the last ranks.
    /// Cells that need several nodes are refused without it.
    #[serde(default, skip_serializing_if = "Nodes::is_one")]
    pub nodes: Nodes,
    /// Bumped by hand when the way of launching changes what is measured.
    #[serde(default)]
    pub launch_abi: u32,
    /// Declared environment; part of the key.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// More variables that pass through from the caller; not part of the key.
    #[serde(default)]
    pub pass_env: Vec<String>,
}

impl Launch {
    /// Has `frameworks.<id>` keys of its own that nobody lists? See [`Launch::options`].
    #[must_use]
    pub fn is_open(&self) -> bool {
        let options = self.options.as_ref();
        options.is_none_or(|options| options.iter().any(|option| option == ANY_OPTION))
    }

    /// The listed options.
    pub fn option_names(&self) -> impl Iterator<Item = &str> + Clone {
        let options = self.options.iter().flatten().map(String::as_str);
        options.filter(|option| *option != ANY_OPTION)
    }

    #[must_use]
    pub fn has_option(&self, name: &str) -> bool {
        self.option_names().any(|option| option == name)
    }
}

/// Among the options of a recipe: any others, too.
const ANY_OPTION: &str = "*";

/// On how many nodes the launch files can start a run, and which rank prints its steps there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Nodes {
    /// On one only. `false` in recipe.toml, as without the key.
    #[default]
    One,
    /// On several; the first rank prints the steps. `true` in recipe.toml.
    FirstRankSpeaks,
    /// On several; the last rank prints the steps, as Megatron's does. `"last"` in recipe.toml.
    LastRankSpeaks,
}

impl Nodes {
    fn is_one(&self) -> bool {
        *self == Self::One
    }

    /// The rank of a node of a run on `nodes`. Node 0 is the one whose log is read, so it gets the
    /// rank that prints the steps. The same function gives the node of a rank.
    #[must_use]
    pub fn rank_of(self, node: usize, nodes: usize) -> usize {
        match self {
            Self::One | Self::FirstRankSpeaks => node,
            Self::LastRankSpeaks => nodes.saturating_sub(node + 1),
        }
    }
}

impl Serialize for Nodes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::One => serializer.serialize_bool(false),
            Self::FirstRankSpeaks => serializer.serialize_bool(true),
            Self::LastRankSpeaks => serializer.serialize_str(LAST),
        }
    }
}

impl<'de> Deserialize<'de> for Nodes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodesVisitor)
    }
}

const LAST: &str = "last";

struct NodesVisitor;

impl Visitor<'_> for NodesVisitor {
    type Value = Nodes;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "true, false or \"{LAST}\"")
    }

    fn visit_bool<E: de::Error>(self, several: bool) -> Result<Nodes, E> {
        Ok(match several {
            true => Nodes::FirstRankSpeaks,
            false => Nodes::One,
        })
    }

    fn visit_str<E: de::Error>(self, word: &str) -> Result<Nodes, E> {
        match word {
            LAST => Ok(Nodes::LastRankSpeaks),
            _ => Err(E::invalid_value(de::Unexpected::Str(word), &self)),
        }
    }
}

impl JsonSchema for Nodes {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Nodes".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "enum": [true, false, LAST] })
    }
}

/// What a section of tprimat.lock may say of a host.
pub const FACTS: [&str; 8] = [
    "vendor",
    "accelerator",
    "count",
    "cores",
    "memory_bytes",
    "power_cap_watts",
    "partition",
    "driver",
];

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LockNeeds {
    /// Facts of tprimat.lock that the train key covers.
    #[serde(default)]
    pub facts: Vec<String>,
    /// Python distributions whose versions the train key covers.
    #[serde(default)]
    pub packages: Vec<String>,
}

impl LockNeeds {
    /// Adds packages that are not among them, however their names are written.
    pub fn cover(&mut self, packages: &[impl AsRef<str>]) {
        let normal = |name: &str| name.to_lowercase().replace(['_', '.'], "-");
        let stated: Vec<String> = self.packages.iter().map(|n| normal(n)).collect();
        let names = packages.iter().map(AsRef::as_ref);
        let others = names.filter(|name: &&str| !stated.contains(&normal(name)));
        self.packages.extend(others.map(str::to_owned));
    }
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Require {
    #[serde(default)]
    pub commands: Vec<String>,
    /// Programs that ship with tprimat.
    #[serde(default)]
    pub programs: Vec<String>,
    /// Modules that the trainer imports, by the names it imports them by.
    #[serde(default)]
    pub python_modules: Vec<String>,
    /// What `pip install` takes for a module, where that is not the module's name: `yaml =
    /// "PyYAML"`.
    #[serde(default)]
    pub pip: BTreeMap<String, String>,
    #[serde(default)]
    pub checkouts: Vec<Checkout>,
}

/// Somebody else's repository, checked out on the host. Its path reaches scripts in a variable; its
/// commit is a fact of the lock.
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Checkout {
    /// The variable that the launch script reads: `PRIMUS_PATH`.
    pub variable: String,
    /// Where config.yaml says it is: `paths.primus`.
    pub setting: String,
    /// A file that tells such a checkout from any other folder.
    pub file: String,
    /// How to get one, in a line.
    pub help: String,
}

#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct RunSection {
    /// `90s`, `30m`, `6h`; not part of any key.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout: Option<String>,
    /// Where config.yaml names no executor: `container` for a framework that exists as an image
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub executor: Option<String>,
}

/// How the memory that a job needs is predicted (docs/METRICS.md, "Memory (fit)").
#[derive(Clone, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct MemorySection {
    pub model: MemoryModel,
    /// The precisions that the model holds for in this recipe.
    pub precisions: Vec<String>,
    /// Those of them in which its predictions were compared with measured peaks.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub checked: Vec<String>,
    /// The embedding is padded to a multiple of this times TP; read by the model `megatron`.
    #[serde(default = "one")]
    pub vocab_multiple: u32,
}

fn one() -> u32 {
    1
}

/// Whose way of keeping weights, gradients, states and activations it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryModel {
    /// tprimat-native's fused kernels, or libtorch's autograd where they do not cover the job.
    TprimatNative,
    /// Transformers' Trainer: whole state on every device.
    TransformersTrainer,
    /// FSDP2, sharded layer by layer.
    Fsdp2,
    /// DeepSpeed's ZeRO stages.
    DeepspeedZero,
    /// torchtitan's Llama with FSDP2.
    Torchtitan,
    /// Megatron-core and what stands on it.
    Megatron,
}
