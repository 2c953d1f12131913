//! What two cells ran in, besides their workload: how that differs, and which settings alone can
//! decide a comparison.

use std::collections::{BTreeMap, BTreeSet};

use tprimat_results::{Contract, settings::DETERMINISTIC};
use tprimat_words::secret::{SECRET, is_secret, public_value};

use super::{
    CellEnvironment, CellInput, Danger, EnvironmentChange, EnvironmentDifference,
    EnvironmentKind::{self, Fact, Variable, Version},
    EnvironmentSummary, Warning,
};

/// Differences that are told in full beside a comparison; the JSON has all.
const TOLD: usize = 6;
const PACKAGE: &str = "package.";
/// The fact that says whether a cell's runs may run beside others on their host. Imported runs do not
/// state it.
pub const SHARE: &str = "share";

/// A variable that slows a run down enough to decide a comparison.
struct DangerousVariable {
    /// A trailing `*` stands for any ending.
    names: &'static [&'static str],
    when: fn(&str) -> bool,
    danger: Danger,
}

const fn danger(
    names: &'static [&'static str],
    when: fn(&str) -> bool,
    danger: Danger,
) -> DangerousVariable {
    DangerousVariable {
        names,
        when,
        danger,
    }
}

/// Sources: the CUDA C++ programming guide, HIP's and ROCr's environment variables, NCCL's user
/// guide, PyTorch's notes on reproducibility and on distributed debugging, Transformer Engine's
/// environment variables.
const DANGERS: &[DangerousVariable] = &[
    danger(
        &["CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING"],
        is_on,
        Danger::WaitsForKernels,
    ),
    danger(
        &["AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY"],
        is_on,
        Danger::Serialised,
    ),
    danger(&["NCCL_DEBUG"], is_talkative, Danger::CollectivesLog),
    danger(
        &["TORCH_DISTRIBUTED_DEBUG"],
        is_talkative,
        Danger::CollectivesChecked,
    ),
    danger(
        &["NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"],
        is_on,
        Danger::WaitsForCollectives,
    ),
    danger(
        &["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"],
        is_on,
        Danger::NoDirectTransfers,
    ),
    danger(
        &["CUBLAS_WORKSPACE_CONFIG"],
        is_deterministic_workspace,
        Danger::DeterministicProducts,
    ),
    danger(
        &["NVTE_ALLOW_NONDETERMINISTIC_ALGO"],
        is_off,
        Danger::DeterministicAttention,
    ),
    danger(
        &[
            "TORCH_DETERMINISTIC*",
            "TF_DETERMINISTIC_OPS",
            "TF_CUDNN_DETERMINISTIC",
            "FLAGS_cudnn_deterministic",
        ],
        is_on,
        Danger::DeterministicAlgorithms,
    ),
    danger(
        &[
            "PYTORCH_NO_CUDA_MEMORY_CACHING",
            "PYTORCH_NO_HIP_MEMORY_CACHING",
        ],
        is_on,
        Danger::MemoryNotCached,
    ),
    danger(
        &["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"],
        is_on,
        Danger::NotCompiled,
    ),
    danger(
        &["AMD_LOG_LEVEL", "HIP_TRACE_API"],
        is_on,
        Danger::RuntimeLogs,
    ),
    danger(
        &[
            "CUDA_INJECTION64_PATH",
            "NVTX_INJECTION64_PATH",
            "HSA_TOOLS_LIB",
            "ROCP_TOOL_LIB*",
            "KINETO_USE_DAEMON",
            "NSYS_*",
            "ROCPROF*",
        ],
        is_on,
        Danger::Profiled,
    ),
];

fn is_off(value: &str) -> bool {
    ["0", "false", "no", "off"].contains(&value.trim().to_lowercase().as_str())
}
fn is_on(value: &str) -> bool {
    !value.trim().is_empty() && !is_off(value)
}
fn is_talkative(value: &str) -> bool {
    ["INFO", "TRACE", "DETAIL"].contains(&value.trim().to_uppercase().as_str())
}
/// The two settings with which cuBLAS promises the same bits, `:4096:8` and `:16:8`.
fn is_deterministic_workspace(value: &str) -> bool {
    !value.trim().is_empty() && value.trim() != ":0:0"
}

/// Why this variable alone can decide a comparison, if it can.
fn danger_of(name: &str, value: &str) -> Option<Danger> {
    let is_named = |pattern: &&'static str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    DANGERS
        .iter()
        .find(|d| d.names.iter().any(is_named) && (d.when)(value))
        .map(|d| d.danger.clone())
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
                dangerous: dangerous(kind, name, [va, vb], a, b),
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
) -> Option<Danger> {
    if kind == Variable {
        return values
            .into_iter()
            .flatten()
            .find_map(|value| danger_of(name, value));
    }
    if (kind, name) == (Fact, SHARE) {
        return Some(Danger::SharedHost);
    }
    let is_one_sku =
        a.fact("accelerator").is_some() && a.fact("accelerator") == b.fact("accelerator");
    let danger = match (kind, name) {
        (Fact, "power_cap_watts") => Danger::OtherPowerLimit,
        (Fact, "partition") => Danger::OtherPartition,
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

/// What the first of two cells ran in beside the second; `None` where nothing differs.
#[must_use]
pub fn environment_summary(differences: &[EnvironmentDifference]) -> Option<EnvironmentSummary> {
    let first = differences.first()?;
    let (own, following): (Vec<_>, Vec<_>) = differences
        .iter()
        .partition(|d| d.dangerous.is_some() || d.follows.is_none());
    let follows: BTreeSet<&String> = following
        .iter()
        .filter_map(|d| d.follows.as_ref())
        .collect();
    Some(EnvironmentSummary {
        baseline: first.cell_b.clone(),
        shown: own.iter().take(TOLD).map(|d| d.change()).collect(),
        more: own.len().saturating_sub(TOLD),
        following: following.iter().map(|d| d.name.clone()).collect(),
        follows: follows.into_iter().cloned().collect(),
    })
}

impl EnvironmentDifference {
    #[must_use]
    pub fn change(&self) -> EnvironmentChange {
        let Self {
            kind,
            name,
            a,
            b,
            dangerous,
            ..
        } = self;
        EnvironmentChange {
            kind: *kind,
            name: name.clone(),
            a: a.clone(),
            b: b.clone(),
            dangerous: dangerous.clone(),
        }
    }
}

/// What alone can decide a comparison, also where both cells have it.
#[must_use]
pub fn warnings_of(environment: &CellEnvironment, contract: &Contract) -> Vec<Warning> {
    let variables = environment
        .variables
        .iter()
        .filter(|(name, _)| !is_secret(name));
    let mut warnings: Vec<Warning> = variables
        .filter_map(|(name, value)| {
            let danger = danger_of(name, value)?;
            Some(Warning::Variable {
                name: name.clone(),
                value: value.clone(),
                danger,
            })
        })
        .collect();
    if contract
        .get(DETERMINISTIC)
        .is_some_and(|v| v.as_bool() == Some(true))
    {
        warnings.push(Warning::Deterministic);
    }
    warnings
}

#[cfg(test)]
mod tests;
