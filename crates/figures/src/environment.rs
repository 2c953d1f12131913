//! What two cells ran in, besides their workload: how that differs, and which settings alone can decide a comparison.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    ops::Range,
};

use super::{CellEnvironment, CellInput, Contract, EnvironmentDifference, settings::DETERMINISTIC};

/// Told in full beside a comparison; the JSON has all.
const TOLD: usize = 6;
const PACKAGE: &str = "package.";

/// A variable that slows a run down enough to decide a comparison.
struct Danger {
    /// A trailing `*` stands for any ending.
    names: &'static [&'static str],
    when: fn(&str) -> bool,
    why: &'static str,
}

const fn danger(names: &'static [&'static str], when: fn(&str) -> bool, why: &'static str) -> Danger {
    Danger { names, when, why }
}

/// Sources: the CUDA C++ programming guide, HIP's and ROCr's environment variables, NCCL's user guide, PyTorch's notes on
/// reproducibility and on distributed debugging, Transformer Engine's environment variables.
const DANGERS: &[Danger] = &[
    danger(&["CUDA_LAUNCH_BLOCKING", "HIP_LAUNCH_BLOCKING"], is_on, "the host waits for every kernel"),
    danger(&["AMD_SERIALIZE_KERNEL", "AMD_SERIALIZE_COPY"], is_on, "kernels or copies run one after the other"),
    danger(&["NCCL_DEBUG"], is_talkative, "collectives write logs while they run"),
    danger(&["TORCH_DISTRIBUTED_DEBUG"], is_talkative, "collectives are checked and logged"),
    danger(&["NCCL_BLOCKING_WAIT", "TORCH_NCCL_BLOCKING_WAIT"], is_on, "the host waits for every collective"),
    danger(&["NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"], is_on, "GPUs of one host do not talk to each other directly"),
    danger(&["CUBLAS_WORKSPACE_CONFIG"], is_deterministic_workspace, "deterministic matrix products"),
    danger(&["NVTE_ALLOW_NONDETERMINISTIC_ALGO"], is_off, "deterministic attention"),
    danger(
        &["TORCH_DETERMINISTIC*", "TF_DETERMINISTIC_OPS", "TF_CUDNN_DETERMINISTIC", "FLAGS_cudnn_deterministic"],
        is_on,
        "deterministic algorithms",
    ),
    danger(
        &["PYTORCH_NO_CUDA_MEMORY_CACHING", "PYTORCH_NO_HIP_MEMORY_CACHING"],
        is_on,
        "memory is allocated anew each time",
    ),
    danger(&["TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"], is_on, "torch.compile does nothing"),
    danger(&["AMD_LOG_LEVEL", "HIP_TRACE_API"], is_on, "the runtime logs every call"),
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
        "a profiler is attached",
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
fn danger_of(name: &str, value: &str) -> Option<&'static str> {
    let is_named = |pattern: &&'static str| match pattern.strip_suffix('*') {
        Some(start) => name.starts_with(start),
        None => name == *pattern,
    };
    DANGERS.iter().find(|d| d.names.iter().any(is_named) && (d.when)(value)).map(|d| d.why)
}

/// Parts of names, between underscores, that make a secret of a variable: `WANDB_KEY`, but not `MONKEY`.
const SECRET_PARTS: [&str; 6] = ["KEY", "PASS", "PASSPHRASE", "SSHPASS", "PWD", "AUTH"];
/// What is in no harmless name, with or without an underscore before it: `PGPASSWORD`.
const SECRET_WORDS: [&str; 5] = ["PASSWORD", "PASSWD", "SECRET", "CREDENTIAL", "APIKEY"];

/// Is this the name of something that nobody may read?
#[must_use]
pub fn is_secret(name: &str) -> bool {
    let name = name.to_uppercase();
    // The shell's own: the folder that it is in.
    if name == "PWD" {
        return false;
    }
    SECRET_WORDS.iter().any(|word| name.contains(word))
        || name
            .split(|c: char| !c.is_ascii_alphanumeric())
            .any(|part| part.ends_with("TOKEN") || SECRET_PARTS.contains(&part))
}

/// The user and password of every address in a text: `user:password` of `http://user:password@host`, and a name so long
/// that it is a key (`https://0123456789abcdef@host`).
#[must_use]
pub fn passwords_in(text: &str) -> Vec<Range<usize>> {
    /// No user has a longer name.
    const LONG_NAME: usize = 16;
    let mut found = Vec::new();
    for (at, separator) in text.match_indices("://") {
        let start = at + separator.len();
        let rest = &text[start..];
        let end = rest.find(|c: char| c.is_whitespace() || "/?#\"'".contains(c)).unwrap_or(rest.len());
        if let Some(user) = rest[..end].rfind('@').map(|at| &rest[..at])
            && (user.contains(':') || user.len() >= LONG_NAME)
        {
            found.push(start..start + user.len());
        }
    }
    found
}

/// A small number or a switch is a setting, whatever its variable is called: `NUM_PASS=3`, `USE_AUTH=true`. Left out of
/// a key, its old measurement would stand for the new value.
fn is_plain_setting(value: &str) -> bool {
    const LONGEST: usize = 6;
    value.len() <= LONGEST && (value.parse::<f64>().is_ok() || ["true", "false", "on", "off", ""].contains(&value))
}

/// What keys and people may know of a declared variable's value.
#[must_use]
pub fn public_value<'v>(name: &str, value: &'v str) -> Cow<'v, str> {
    if is_secret(name) && !is_plain_setting(value) {
        return Cow::Borrowed("(secret)");
    }
    let mut public = Cow::Borrowed(value);
    for password in passwords_in(value).into_iter().rev() {
        public.to_mut().replace_range(password, "(secret)");
    }
    public
}

impl CellEnvironment {
    /// Without what nobody may read.
    #[must_use]
    pub fn public(mut self) -> Self {
        self.variables.retain(|name, value| !is_secret(name) || is_plain_setting(value));
        for (name, value) in &mut self.variables {
            *value = public_value(name, value).into_owned();
        }
        self
    }
}

/// What a cell's runs say and what is declared for them.
pub struct Surroundings<'a> {
    pub cell: &'a str,
    pub platform: &'a str,
    pub framework: &'a str,
    /// Of runs that others made, nothing is declared: what is absent is not known.
    pub is_imported: bool,
    pub environment: &'a CellEnvironment,
    /// As the trainer prints them.
    pub versions: &'a BTreeMap<String, String>,
}

impl<'a> Surroundings<'a> {
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
        let locked = self.environment.facts.iter().filter_map(|(n, v)| Some((n.strip_prefix(PACKAGE)?, v.as_str())));
        locked.chain(self.versions.iter().map(|(n, v)| (n.as_str(), v.as_str()))).collect()
    }

    fn facts(&self) -> BTreeMap<&str, &str> {
        let of_host = self.environment.facts.iter().filter(|(name, _)| !name.starts_with(PACKAGE));
        of_host.map(|(n, v)| (n.as_str(), v.as_str())).collect()
    }

    fn variables(&self) -> BTreeMap<&str, &str> {
        let all = self.environment.variables.iter().filter(|(name, _)| !is_secret(name));
        all.map(|(n, v)| (n.as_str(), v.as_str())).collect()
    }
}

/// Everything besides the workload that is not the same in `a` and in `b`, the baseline; dangerous ones first, and last
/// what merely follows from another vendor, platform or framework.
#[must_use]
pub fn environment_differences(a: &Surroundings<'_>, b: &Surroundings<'_>) -> Vec<EnvironmentDifference> {
    let mut all = Vec::new();
    let mut add = |kind: &str, of_a: BTreeMap<&str, &str>, of_b: BTreeMap<&str, &str>| {
        let names: BTreeSet<&str> = of_a.keys().chain(of_b.keys()).copied().collect();
        for name in names.into_iter().filter(|name| of_a.get(name) != of_b.get(name)) {
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

/// Are they one version, as far as both state it? `2.11.0+cu130` names its build, `2.11.0` does not.
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
    a: &Surroundings<'_>,
    b: &Surroundings<'_>,
) -> Option<String> {
    if kind == "variable" {
        return values.into_iter().flatten().find_map(|value| danger_of(name, value)).map(str::to_owned);
    }
    let is_one_sku = a.fact("accelerator").is_some() && a.fact("accelerator") == b.fact("accelerator");
    let why = match (kind, name) {
        ("fact", "power_cap_watts") => "the same device at another power limit",
        ("fact", "partition") => "the same device, cut up in another way",
        _ => return None,
    };
    is_one_sku.then(|| why.to_owned())
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
fn follows(kind: &str, name: &str, both: bool, a: &Surroundings<'_>, b: &Surroundings<'_>) -> Option<&'static str> {
    let (other_vendor, other_framework) = (a.vendor() != b.vendor(), a.framework != b.framework);
    let other_sku = a.fact("accelerator") != b.fact("accelerator");
    match kind {
        "variable" if other_vendor && !both && OF_VENDORS.iter().any(|start| name.starts_with(start)) => Some("vendor"),
        "variable" if !OF_FRAMEWORKS.iter().any(|start| name.starts_with(start)) => None,
        "fact" if other_vendor || (other_sku && a.platform != b.platform) => Some("platform"),
        "variable" | "version" | "fact" if other_framework && !both => Some("framework"),
        "version" if other_vendor && !both => Some("vendor"),
        _ => None,
    }
}

/// What the first of two cells ran in beside the second, for people; `None` where nothing differs.
#[must_use]
pub fn environment_words(differences: &[EnvironmentDifference]) -> Option<String> {
    let first = differences.first()?;
    let (own, following): (Vec<_>, Vec<_>) =
        differences.iter().partition(|d| d.dangerous.is_some() || d.follows.is_none());
    let mut parts: Vec<String> = own.iter().take(TOLD).map(|d| d.sentence()).collect();
    if own.len() > TOLD {
        parts.push(format!("{} more", own.len() - TOLD));
    }
    if !following.is_empty() {
        let from: BTreeSet<&str> = following.iter().filter_map(|d| d.follows.as_deref()).collect();
        let names = super::compare::few(&following.iter().map(|d| d.name.clone()).collect::<Vec<_>>());
        let from = from.into_iter().collect::<Vec<_>>().join(", ");
        parts.push(format!("and, as another {from} has it, {names}"));
    }
    Some(format!("another environment than that of {}: {}", first.cell_b, parts.join("; ")))
}

impl EnvironmentDifference {
    /// `NCCL_DEBUG: INFO, not WARN`
    #[must_use]
    pub fn sentence(&self) -> String {
        let mut text = match (&self.a, &self.b) {
            (Some(a), Some(b)) => format!("{}: {a}, not {b}", self.name),
            (Some(a), None) => format!("{}: {a}, but there not set", self.name),
            (None, b) => format!("{}: not set, but there {}", self.name, b.as_deref().unwrap_or("not set")),
        };
        if let Some(why) = &self.dangerous {
            text = format!("{text} ({why})");
        }
        text
    }
}

/// What alone can decide a comparison, also where both arms have it: `CUDA_LAUNCH_BLOCKING=1: the host waits …`.
#[must_use]
pub fn warnings_of(environment: &CellEnvironment, contract: &Contract) -> Vec<String> {
    let variables = environment.variables.iter().filter(|(name, _)| !is_secret(name));
    let mut warnings: Vec<String> =
        variables.filter_map(|(name, value)| Some(format!("{name}={value}: {}", danger_of(name, value)?))).collect();
    if contract.get(DETERMINISTIC).is_some_and(|v| v.as_bool() == Some(true)) {
        warnings.push("deterministic algorithms are on".to_owned());
    }
    warnings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(items: &[(&str, &str)]) -> BTreeMap<String, String> {
        items.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect()
    }
    fn environment(variables: &[(&str, &str)], facts: &[(&str, &str)]) -> CellEnvironment {
        CellEnvironment { variables: map(variables), facts: map(facts) }
    }
    fn between(names: [&str; 2], a: &CellEnvironment, b: &CellEnvironment) -> Vec<EnvironmentDifference> {
        let none = BTreeMap::new();
        let of = |cell: &'static str, environment| Surroundings {
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
    fn passwords_in_addresses_are_found_and_nothing_else() {
        let public = |value: &str| public_value("URL", value).into_owned();
        for (value, shown) in [
            ("http://u:pw@proxy:3128", "http://(secret)@proxy:3128"),
            ("postgres://u:p@ss@db/x?y=1", "postgres://(secret)@db/x?y=1"),
            ("a=http://u:1@h b=http://v:2@i", "a=http://(secret)@h b=http://(secret)@i"),
            ("https://0123456789abcdef0123@sentry.io/1", "https://(secret)@sentry.io/1"),
            ("ssh://git@host/x", "ssh://git@host/x"),
            ("http://host/a@b:c", "http://host/a@b:c"),
            ("http://host:80", "http://host:80"),
            ("ü://ü:ü@ü", "ü://(secret)@ü"),
        ] {
            assert_eq!(public(value), shown);
        }
        assert_eq!(public_value("WANDB_API_KEY", "abc"), "(secret)");
    }

    #[test]
    fn a_version_without_its_build_is_the_same_as_with_one() {
        assert!(is_one_version("2.11.0+cu130", "2.11.0") && is_one_version("2.11.0", "2.11.0+cu130"));
        assert!(!is_one_version("2.11.0+cu130", "2.11.0+rocm7.2") && !is_one_version("2.11.0+cu130", "2.11.1"));
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
            &[("HSA_NO_SCRATCH_RECLAIM", "1"), ("OMP_NUM_THREADS", "8"), ("HIP_LAUNCH_BLOCKING", "1")],
            &[("vendor", "amd"), ("accelerator", "MI300X"), ("driver", "6.12"), ("package.torch", "2.8.0")],
        );
        let nvd = environment(
            &[("NCCL_NVLS_ENABLE", "0"), ("OMP_NUM_THREADS", "4")],
            &[("vendor", "nvd"), ("accelerator", "H100"), ("driver", "580"), ("package.torch", "2.11.0")],
        );
        let found = between(["amd/tran/x/y", "nvd/tran/x/y"], &amd, &nvd);
        let names: Vec<_> = found.iter().map(|d| d.name.as_str()).collect();
        assert_eq!(names[..3], ["HIP_LAUNCH_BLOCKING", "OMP_NUM_THREADS", "torch"]);
        assert!(found[3..].iter().all(|d| d.follows.is_some()), "{found:?}");
        let text = environment_words(&found).unwrap();
        assert!(text.contains("HIP_LAUNCH_BLOCKING: 1, but there not set (the host waits for every kernel)"), "{text}");
        assert!(text.contains("torch: 2.8.0, not 2.11.0"), "{text}");
        assert!(text.contains("as another platform, vendor has it, HSA_NO_SCRATCH_RECLAIM, "), "{text}");
        assert_eq!(between(["amd/tran/x/y", "amd/tran/x/z"], &amd, &amd), []);
    }

    #[test]
    fn a_power_cap_is_dangerous_only_on_the_same_device() {
        let with = |sku: &str, watts: &str| {
            environment(&[], &[("accelerator", sku), ("power_cap_watts", watts), ("vendor", "nvd")])
        };
        let cap = |a: &CellEnvironment, b: &CellEnvironment| {
            let all = between(["h1/tran/x/y", "h2/tran/x/y"], a, b);
            all.into_iter().find(|d| d.name == "power_cap_watts").unwrap()
        };
        assert!(cap(&with("H100", "500"), &with("H100", "700")).dangerous.is_some());
        let other = cap(&with("H100", "700"), &with("H200", "750"));
        assert_eq!((other.dangerous, other.follows.as_deref()), (None, Some("platform")));
    }

    #[test]
    fn secrets_are_never_shown() {
        let a = environment(&[("HF_TOKEN", "hunter2"), ("WANDB_API_KEY", "hunter2"), ("AWS_SECRET", "hunter2")], &[]);
        let found = between(["x/a/m/s", "x/b/m/s"], &a, &CellEnvironment::default());
        assert_eq!(found, []);
        assert!(a.clone().public().variables.is_empty() && warnings_of(&a, &Contract::default()).is_empty());
        for name in [
            "my_password",
            "HF_TOKEN",
            "TOKEN",
            "github_token",
            "HFTOKEN",
            "AWS_SECRET_ACCESS_KEY",
            "WANDB_KEY",
            "OPENAI_APIKEY",
            "MYSQL_PWD",
            "PROXY_PASS",
            "DB_PASSWD",
            "PGPASSWORD",
            "REGISTRY_AUTH",
            "GOOGLE_APPLICATION_CREDENTIALS",
        ] {
            assert!(is_secret(name), "{name}");
        }
        for name in [
            "TOKENIZERS_PARALLELISM",
            "TOTAL_TOKENS",
            "MONKEY",
            "KEYBOARD",
            "PWD",
            "OLDPWD",
            "BYPASS",
            "AUTHOR",
            "MAX_TOKENS_PER_GPU",
        ] {
            assert!(!is_secret(name), "{name}");
        }
    }

    #[test]
    fn of_an_import_only_what_it_states_can_differ() {
        let (ours, theirs) = (environment(&[("A", "1")], &[("package.torch", "2.8")]), CellEnvironment::default());
        let versions = map(&[("torch", "2.9")]);
        let side = |is_imported, environment, versions| Surroundings {
            cell: "p/f/m/s",
            platform: "p",
            framework: "f",
            is_imported,
            environment,
            versions,
        };
        let none = BTreeMap::new();
        let found = environment_differences(&side(false, &ours, &none), &side(true, &theirs, &versions));
        let [only] = &found[..] else { panic!("{found:?}") };
        assert_eq!((only.kind.as_str(), only.sentence().as_str()), ("version", "torch: 2.8, not 2.9"));
    }
}
