//! What two cells ran in, besides their workload: how that differs, and which settings alone can
//! decide a comparison.

use std::collections::{BTreeMap, BTreeSet};

use tprimat_results::{Contract, settings::DETERMINISTIC};
use tprimat_words::secret::{SECRET, is_secret, public_value};

use super::{
    CellEnvironment, CellInput, Danger, EnvironmentChange, EnvironmentDifference,
    EnvironmentSummary, Warning,
};

/// Told in full beside a comparison; the JSON has all.
const TOLD: usize = 6;
const PACKAGE: &str = "package.";

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
    /// Without what nobody may read.
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
    /// Of runs that others made, nothing is declared: what is absent is not known.
    pub is_imported: bool,
    pub environment: &'a CellEnvironment,
    /// As the trainer prints them.
    pub versions: &'a BTreeMap<String, String>,
}

impl<'a> ComparedEnvironment<'a> {
    pub(super) fn of(cell: &'a CellInput, versions: &'a BTreeMap<String, String>) -> Self {
        Self {
            cell: &cell.cell,
            platform: &cell.platform,
            framework: &cell.framework,
            is_imported: !cell.imported.is_empty(),
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
    let mut add = |kind: &str, of_a: BTreeMap<&str, &str>, of_b: BTreeMap<&str, &str>| {
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
            if kind == "version" && va.zip(vb).is_some_and(|(a, b)| is_one_version(a, b)) {
                continue;
            }
            all.push(EnvironmentDifference {
                cell_a: a.cell.to_owned(),
                cell_b: b.cell.to_owned(),
                kind: kind.to_owned(),
                name: name.to_owned(),
                a: va.map(str::to_owned),
                b: vb.map(str::to_owned),
                dangerous: dangerous(kind, name, [va, vb], a, b),
                follows: follows(kind, name, va.is_some() && vb.is_some(), a, b).map(str::to_owned),
            });
        }
    };
    add("variable", a.variables(), b.variables());
    add("version", a.packages(), b.packages());
    add("fact", a.facts(), b.facts());
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
    kind: &str,
    name: &str,
    values: [Option<&str>; 2],
    a: &ComparedEnvironment<'_>,
    b: &ComparedEnvironment<'_>,
) -> Option<Danger> {
    if kind == "variable" {
        return values
            .into_iter()
            .flatten()
            .find_map(|value| danger_of(name, value));
    }
    let is_one_sku =
        a.fact("accelerator").is_some() && a.fact("accelerator") == b.fact("accelerator");
    let danger = match (kind, name) {
        ("fact", "power_cap_watts") => Danger::OtherPowerLimit,
        ("fact", "partition") => Danger::OtherPartition,
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
    kind: &str,
    name: &str,
    both: bool,
    a: &ComparedEnvironment<'_>,
    b: &ComparedEnvironment<'_>,
) -> Option<&'static str> {
    let (other_vendor, other_framework) = (a.vendor() != b.vendor(), a.framework != b.framework);
    let other_sku = a.fact("accelerator") != b.fact("accelerator");
    match kind {
        "variable"
            if other_vendor && !both && OF_VENDORS.iter().any(|start| name.starts_with(start)) =>
        {
            Some("vendor")
        }
        "variable" if !OF_FRAMEWORKS.iter().any(|start| name.starts_with(start)) => None,
        "fact" if other_vendor || (other_sku && a.platform != b.platform) => Some("platform"),
        "variable" | "version" | "fact" if other_framework && !both => Some("framework"),
        "version" if other_vendor && !both => Some("vendor"),
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
            name,
            a,
            b,
            dangerous,
            ..
        } = self;
        EnvironmentChange {
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
mod tests {
    use super::*;

    fn map(items: &[(&str, &str)]) -> BTreeMap<String, String> {
        items
            .iter()
            .map(|(n, v)| ((*n).to_owned(), (*v).to_owned()))
            .collect()
    }
    fn environment(variables: &[(&str, &str)], facts: &[(&str, &str)]) -> CellEnvironment {
        CellEnvironment {
            variables: map(variables),
            facts: map(facts),
        }
    }
    fn between(
        names: [&str; 2],
        a: &CellEnvironment,
        b: &CellEnvironment,
    ) -> Vec<EnvironmentDifference> {
        let none = BTreeMap::new();
        let of = |cell: &'static str, environment| ComparedEnvironment {
            cell,
            platform: cell.split('/').next().unwrap(),
            framework: cell.split('/').nth(1).unwrap(),
            is_imported: false,
            environment,
            versions: &none,
        };
        let leak = |name: &str| -> &'static str { Box::leak(name.to_owned().into_boxed_str()) };
        environment_differences(&of(leak(names[0]), a), &of(leak(names[1]), b))
    }

    #[test]
    fn a_version_without_its_build_is_the_same_as_with_one() {
        assert!(
            is_one_version("2.11.0+cu130", "2.11.0") && is_one_version("2.11.0", "2.11.0+cu130")
        );
        assert!(
            !is_one_version("2.11.0+cu130", "2.11.0+rocm7.2")
                && !is_one_version("2.11.0+cu130", "2.11.1")
        );
    }

    #[test]
    fn dangerous_values_are_known_and_harmless_ones_are_not() {
        for (name, value) in [
            ("CUDA_LAUNCH_BLOCKING", "1"),
            ("HIP_LAUNCH_BLOCKING", "true"),
            ("AMD_SERIALIZE_KERNEL", "3"),
            ("NCCL_DEBUG", "INFO"),
            ("NCCL_DEBUG", "trace"),
            ("TORCH_DISTRIBUTED_DEBUG", "DETAIL"),
            ("TORCH_NCCL_BLOCKING_WAIT", "1"),
            ("CUBLAS_WORKSPACE_CONFIG", ":4096:8"),
            ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "0"),
            ("NSYS_PROFILING_SESSION_ID", "7"),
        ] {
            assert!(danger_of(name, value).is_some(), "{name}={value}");
        }
        for (name, value) in [
            ("CUDA_LAUNCH_BLOCKING", "0"),
            ("CUDA_LAUNCH_BLOCKING", ""),
            ("AMD_SERIALIZE_KERNEL", "0"),
            ("NCCL_DEBUG", "WARN"),
            ("NCCL_DEBUG_FILE", "x"),
            ("TORCH_DISTRIBUTED_DEBUG", "OFF"),
            ("NVTE_ALLOW_NONDETERMINISTIC_ALGO", "1"),
            ("CUDA_DEVICE_MAX_CONNECTIONS", "1"),
        ] {
            assert_eq!(danger_of(name, value), None, "{name}={value}");
        }
    }

    #[test]
    fn what_follows_from_the_vendor_is_condensed_and_the_rest_is_told() {
        let amd = environment(
            &[
                ("HSA_NO_SCRATCH_RECLAIM", "1"),
                ("OMP_NUM_THREADS", "8"),
                ("HIP_LAUNCH_BLOCKING", "1"),
            ],
            &[
                ("vendor", "amd"),
                ("accelerator", "MI300X"),
                ("driver", "6.12"),
                ("package.torch", "2.8.0"),
            ],
        );
        let nvd = environment(
            &[("NCCL_NVLS_ENABLE", "0"), ("OMP_NUM_THREADS", "4")],
            &[
                ("vendor", "nvd"),
                ("accelerator", "H100"),
                ("driver", "580"),
                ("package.torch", "2.11.0"),
            ],
        );
        let found = between(["amd/tran/x/y", "nvd/tran/x/y"], &amd, &nvd);
        let names: Vec<_> = found.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(
            names[..3],
            ["HIP_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "torch"]
        );
        assert!(found[3..].iter().all(|d| d.follows.is_some()), "{found:?}");
        let fact = crate::ComparisonFact::Environment(environment_summary(&found).unwrap());
        let text = crate::Note::new(crate::NoteKind::Environment, fact).text();
        assert!(
            text.contains(
                "HIP_LAUNCH_BLOCKING: 1 instead of unset (the host waits for every kernel)"
            ),
            "{text}"
        );
        assert!(text.contains("torch: 2.8.0, not 2.11.0"), "{text}");
        assert!(
            text.contains("as another platform, vendor has it, HSA_NO_SCRATCH_RECLAIM, "),
            "{text}"
        );
        assert_eq!(between(["amd/tran/x/y", "amd/tran/x/z"], &amd, &amd), []);
    }

    #[test]
    fn a_power_cap_is_dangerous_only_on_the_same_device() {
        let with = |sku: &str, watts: &str| {
            environment(
                &[],
                &[
                    ("accelerator", sku),
                    ("power_cap_watts", watts),
                    ("vendor", "nvd"),
                ],
            )
        };
        let cap = |a: &CellEnvironment, b: &CellEnvironment| {
            let all = between(["h1/tran/x/y", "h2/tran/x/y"], a, b);
            all.into_iter()
                .find(|d| d.name == "power_cap_watts")
                .unwrap()
        };
        assert!(
            cap(&with("H100", "500"), &with("H100", "700"))
                .dangerous
                .is_some()
        );
        let other = cap(&with("H100", "700"), &with("H200", "750"));
        assert_eq!(
            (other.dangerous, other.follows.as_deref()),
            (None, Some("platform"))
        );
    }

    #[test]
    fn secrets_are_never_shown() {
        let a = environment(
            &[
                ("HF_TOKEN", "hunter2"),
                ("WANDB_API_KEY", "hunter2"),
                ("AWS_SECRET", "hunter2"),
            ],
            &[],
        );
        let found = between(["x/a/m/s", "x/b/m/s"], &a, &CellEnvironment::default());
        assert_eq!(found, []);
        assert!(
            a.clone().public().variables.is_empty()
                && warnings_of(&a, &Contract::default()).is_empty()
        );
    }

    #[test]
    fn of_an_import_only_what_it_states_can_differ() {
        let (ours, theirs) = (
            environment(&[("A", "1")], &[("package.torch", "2.8")]),
            CellEnvironment::default(),
        );
        let versions = map(&[("torch", "2.9")]);
        let side = |is_imported, environment, versions| ComparedEnvironment {
            cell: "p/f/m/s",
            platform: "p",
            framework: "f",
            is_imported,
            environment,
            versions,
        };
        let none = BTreeMap::new();
        let found =
            environment_differences(&side(false, &ours, &none), &side(true, &theirs, &versions));
        let [only] = &found[..] else {
            panic!("{found:?}")
        };
        assert_eq!(
            (
                only.kind.as_str(),
                crate::sentences::change(&only.change()).as_str()
            ),
            ("version", "torch: 2.8, not 2.9")
        );
    }
}
