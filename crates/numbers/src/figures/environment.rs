//! What two cells ran in, besides their workload: how that differs, and which settings alone can
//! decide a comparison.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use crate::results::{Contract, Reason, settings::DETERMINISTIC, words::few};
use serde::Deserialize;
use tprimat_base::words::secret::{SECRET, is_secret, public_value};

use super::{
    CellEnvironment, CellInput, EnvironmentDifference,
    EnvironmentKind::{self, Fact, Variable, Version},
    codes::DANGEROUS_VARIABLE,
};

/// Differences that are told in full beside a comparison; the JSON has all.
const TOLD: usize = 6;
const PACKAGE: &str = "package.";
/// The fact that says whether a cell's runs may run beside others on their host. Imported runs do not
/// state it.
pub const SHARE: &str = "share";

/// Variables that slow a run down enough to decide a comparison: a row of `dangers.toml`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Danger {
    names: Vec<String>,
    when: When,
    why: String,
}

#[derive(Clone, Copy, Deserialize)]
#[serde(rename_all = "lowercase")]
enum When {
    On,
    Off,
    Talkative,
    Deterministic,
}

impl When {
    fn is(self, value: &str) -> bool {
        let value = value.trim().to_lowercase();
        let is_off = ["0", "false", "no", "off"].contains(&&*value);
        match self {
            Self::On => !value.is_empty() && !is_off,
            Self::Off => is_off,
            Self::Talkative => ["info", "trace", "detail"].contains(&&*value),
            Self::Deterministic => !value.is_empty() && value != ":0:0",
        }
    }
}

static DANGERS: LazyLock<Vec<Danger>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct File {
        danger: Vec<Danger>,
    }
    let file: File = toml::from_str(include_str!("dangers.toml")).expect("a test reads it");
    file.danger
});

/// Why this variable alone can decide a comparison, if it can.
fn danger_of(name: &str, value: &str) -> Option<&'static str> {
    let is_named = |pattern: &String| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    DANGERS
        .iter()
        .find(|d| d.names.iter().any(is_named) && d.when.is(value))
        .map(|d| &*d.why)
}

impl CellEnvironment {
    /// Removes what nobody may read.
    #[must_use]
    pub fn public(mut self) -> Self {
        self.variables
            .retain(|name, value| public_value(name, value) != SECRET);
        for (name, value) in &mut self.variables {
            *value = public_value(name, value).into_owned();
        }
        self
    }
}

/// What a cell's runs say and what is declared for them.
pub struct ComparedEnvironment<'a> {
    pub cell: &'a str,
    pub platform: &'a str,
    pub framework: &'a str,
    /// An imported run declares nothing, so what is absent from its environment is not known.
    pub is_imported: bool,
    /// The run was made under an earlier configuration, so only the facts in its key are known.
    pub is_earlier: bool,
    pub environment: &'a CellEnvironment,
    /// What the trainer prints.
    pub versions: &'a BTreeMap<String, String>,
}

impl<'a> ComparedEnvironment<'a> {
    pub(super) fn of(cell: &'a CellInput, versions: &'a BTreeMap<String, String>) -> Self {
        Self {
            cell: &cell.cell,
            platform: &cell.platform,
            framework: &cell.framework,
            is_imported: !cell.imported.is_empty(),
            is_earlier: cell.standing.earlier.is_some(),
            environment: &cell.environment,
            versions,
        }
    }

    fn fact(&self, name: &str) -> Option<&String> {
        self.environment.facts.get(name)
    }

    /// The lock's vendor; else as good a name as any.
    fn vendor(&self) -> &str {
        self.fact("vendor").map_or(self.platform, String::as_str)
    }

    /// Packages by name: the trainer's own word, else the lock's.
    fn packages(&self) -> BTreeMap<&str, &str> {
        let locked = self
            .environment
            .facts
            .iter()
            .filter_map(|(n, v)| Some((n.strip_prefix(PACKAGE)?, v.as_str())));
        locked
            .chain(self.versions.iter().map(|(n, v)| (n.as_str(), v.as_str())))
            .collect()
    }

    fn facts(&self) -> BTreeMap<&str, &str> {
        let of_host = self
            .environment
            .facts
            .iter()
            .filter(|(name, _)| !name.starts_with(PACKAGE));
        of_host.map(|(n, v)| (n.as_str(), v.as_str())).collect()
    }

    fn variables(&self) -> BTreeMap<&str, &str> {
        let all = self
            .environment
            .variables
            .iter()
            .filter(|(name, _)| !is_secret(name));
        all.map(|(n, v)| (n.as_str(), v.as_str())).collect()
    }
}

/// Everything besides the workload that is not the same in `a` and in `b`, the baseline; dangerous
/// ones first, and last what merely follows from another vendor, platform or framework.
#[must_use]
pub fn environment_differences(
    a: &ComparedEnvironment<'_>,
    b: &ComparedEnvironment<'_>,
) -> Vec<EnvironmentDifference> {
    let mut all = Vec::new();
    let mut add = |kind: EnvironmentKind,
                   of_a: BTreeMap<&str, &str>,
                   of_b: BTreeMap<&str, &str>| {
        let names: BTreeSet<&str> = of_a.keys().chain(of_b.keys()).copied().collect();
        for name in names
            .into_iter()
            .filter(|name| of_a.get(name) != of_b.get(name))
        {
            let (va, vb) = (of_a.get(name).copied(), of_b.get(name).copied());
            // What one side does not know is no difference.
            if (a.is_imported || b.is_imported) && (va.is_none() || vb.is_none()) {
                continue;
            }
            // Every key covers the image, so there was none where it names none.
            let is_unknown = |side: &ComparedEnvironment<'_>, value: Option<&str>| {
                kind == Fact
                    && value.is_none()
                    && (name == SHARE || side.is_earlier && name != "image")
            };
            if is_unknown(a, va) || is_unknown(b, vb) {
                continue;
            }
            if kind == Version && va.zip(vb).is_some_and(|(a, b)| is_one_version(a, b)) {
                continue;
            }
            all.push(EnvironmentDifference {
                cell_a: a.cell.to_owned(),
                cell_b: b.cell.to_owned(),
                kind,
                name: name.to_owned(),
                a: va.map(str::to_owned),
                b: vb.map(str::to_owned),
                dangerous: dangerous(kind, name, [va, vb], a, b).map(str::to_owned),
                follows: follows(kind, name, va.is_some() && vb.is_some(), a, b).map(str::to_owned),
            });
        }
    };
    add(Variable, a.variables(), b.variables());
    add(Version, a.packages(), b.packages());
    add(Fact, a.facts(), b.facts());
    all.sort_by_key(|d| (d.dangerous.is_none(), d.follows.is_some()));
    all
}

/// Are they one version, as far as both state it? `2.11.0+cu130` names its build, `2.11.0` does
/// not.
fn is_one_version(a: &str, b: &str) -> bool {
    match (a.split_once('+'), b.split_once('+')) {
        (Some((release, _)), None) => release == b,
        (None, Some((release, _))) => release == a,
        _ => a == b,
    }
}

fn dangerous(
    kind: EnvironmentKind,
    name: &str,
    values: [Option<&str>; 2],
    a: &ComparedEnvironment<'_>,
    b: &ComparedEnvironment<'_>,
) -> Option<&'static str> {
    if kind == Variable {
        return values
            .into_iter()
            .flatten()
            .find_map(|value| danger_of(name, value));
    }
    if (kind, name) == (Fact, SHARE) {
        return Some("with `share`, runs go beside other runs of the host");
    }
    let is_one_sku =
        a.fact("accelerator").is_some() && a.fact("accelerator") == b.fact("accelerator");
    let danger = match (kind, name) {
        (Fact, "power_cap_watts") => "the same device at another power limit",
        (Fact, "partition") => "the same device, cut up in another way",
        _ => return None,
    };
    is_one_sku.then_some(danger)
}

/// Beginnings of names that only one vendor's stack reads.
const OF_VENDORS: [&str; 13] = [
    "CUDA_",
    "CUBLAS",
    "CUDNN_",
    "NVTE_",
    "NVIDIA_",
    "NCCL_",
    "HIP",
    "HSA_",
    "ROC",
    "RCCL_",
    "AMD_",
    "MIOPEN_",
    "GPU_MAX_HW_QUEUES",
];
/// Beginnings of names that only one framework reads, and that cost no time.
const OF_FRAMEWORKS: [&str; 4] = ["HF_", "TOKENIZERS_", "TRANSFORMERS_", "PRIMUS_"];

/// What already tells that this must differ.
fn follows(
    kind: EnvironmentKind,
    name: &str,
    both: bool,
    a: &ComparedEnvironment<'_>,
    b: &ComparedEnvironment<'_>,
) -> Option<&'static str> {
    let (other_vendor, other_framework) = (a.vendor() != b.vendor(), a.framework != b.framework);
    let other_sku = a.fact("accelerator") != b.fact("accelerator");
    match kind {
        Variable
            if other_vendor && !both && OF_VENDORS.iter().any(|start| name.starts_with(start)) =>
        {
            Some("vendor")
        }
        Variable if !OF_FRAMEWORKS.iter().any(|start| name.starts_with(start)) => None,
        Fact if other_vendor || (other_sku && a.platform != b.platform) => Some("platform"),
        _ if other_framework && !both => Some("framework"),
        Version if other_vendor && !both => Some("vendor"),
        _ => None,
    }
}

/// How the environment that a cell ran in differs from that of its baseline, shortened for people;
/// `None` where nothing differs.
#[must_use]
pub fn environment_words(differences: &[EnvironmentDifference], baseline: &str) -> Option<String> {
    if differences.is_empty() {
        return None;
    }
    let (own, following): (Vec<_>, Vec<_>) = differences
        .iter()
        .partition(|d| d.dangerous.is_some() || d.follows.is_none());
    let mut parts: Vec<String> = own.iter().take(TOLD).map(|d| d.words()).collect();
    if own.len() > TOLD {
        parts.push(format!("{} more", own.len() - TOLD));
    }
    if !following.is_empty() {
        let from: BTreeSet<&str> = following
            .iter()
            .filter_map(|d| d.follows.as_deref())
            .collect();
        let from: Vec<&str> = from.into_iter().collect();
        let names: Vec<&str> = following.iter().map(|d| &*d.name).collect();
        parts.push(format!(
            "and, as another {} has it, {}",
            from.join(", "),
            few(&names)
        ));
    }
    Some(format!(
        "environment differs from that of {baseline}: {}",
        parts.join("; ")
    ))
}

impl EnvironmentDifference {
    /// `NCCL_DEBUG: INFO, not WARN`: the first cell's value, then that of the cell it is compared
    /// with.
    #[must_use]
    pub fn words(&self) -> String {
        let name = &self.name;
        let text = match (&self.a, &self.b) {
            (Some(a), Some(b)) => format!("{name}: {a}, not {b}"),
            (Some(a), None) if self.kind == Variable => format!("{name}: {a} instead of unset"),
            (None, Some(b)) if self.kind == Variable => format!("{name}: unset instead of {b}"),
            (Some(a), None) => format!("{name}: {a}, not stated for the other"),
            (None, Some(b)) => format!("{name}: not stated, {b} for the other"),
            (None, None) => format!("{name}: not stated"),
        };
        match &self.dangerous {
            Some(why) => format!("{text} ({why})"),
            None => text,
        }
    }
}

/// What alone can decide a comparison, also where both cells have it.
#[must_use]
pub fn warnings_of(environment: &CellEnvironment, contract: &Contract) -> Vec<Reason> {
    let variables = environment
        .variables
        .iter()
        .filter(|(name, _)| !is_secret(name));
    let mut warnings: Vec<Reason> = variables
        .filter_map(|(name, value)| {
            let danger = danger_of(name, value)?;
            let warning = Reason::beside(DANGEROUS_VARIABLE, format!("{name}={value}: {danger}"));
            Some(warning.with("name", &**name).with("value", &**value))
        })
        .collect();
    if contract
        .get(DETERMINISTIC)
        .is_some_and(|v| v.as_bool() == Some(true))
    {
        let text = "deterministic algorithms are on";
        warnings.push(Reason::beside("deterministic", text));
    }
    warnings
}

#[cfg(test)]
mod tests;
