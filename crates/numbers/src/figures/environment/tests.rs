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
        is_earlier: false,
        environment,
        versions: &none,
    };
    let leak = |name: &str| -> &'static str { Box::leak(name.to_owned().into_boxed_str()) };
    environment_differences(&of(leak(names[0]), a), &of(leak(names[1]), b))
}

#[test]
fn a_version_without_its_build_is_the_same_as_with_one() {
    assert!(is_one_version("2.11.0+cu130", "2.11.0") && is_one_version("2.11.0", "2.11.0+cu130"));
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
    let text = environment_words(&found, "B").unwrap();
    assert!(
        text.contains("HIP_LAUNCH_BLOCKING: 1 instead of unset (the host waits for every kernel)"),
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
        a.clone().public().variables.is_empty() && warnings_of(&a, &Contract::default()).is_empty()
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
        is_earlier: false,
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
        (only.kind, &*only.words()),
        (Version, "torch: 2.8, not 2.9")
    );
}

/// The key of a run covers some facts of its host, and the others were not kept with it.
#[test]
fn of_an_earlier_configuration_a_fact_that_its_key_left_out_is_no_difference() {
    let now = environment(
        &[("A", "1")],
        &[("vendor", "cpu"), ("cores", "8"), ("image", "x")],
    );
    let then = environment(&[], &[("vendor", "cpu")]);
    let none = BTreeMap::new();
    let side = |is_earlier, environment| ComparedEnvironment {
        cell: "p/f/m/s",
        platform: "p",
        framework: "f",
        is_imported: false,
        is_earlier,
        environment,
        versions: &none,
    };
    let said = |is_earlier| -> Vec<String> {
        let found = environment_differences(&side(is_earlier, &then), &side(false, &now));
        found.iter().map(EnvironmentDifference::words).collect()
    };
    let image = "image: not stated, x for the other";
    assert_eq!(said(true), ["A: unset instead of 1", image]);
    assert_eq!(
        said(false),
        [
            "A: unset instead of 1",
            "cores: not stated, 8 for the other",
            image
        ]
    );
}

#[test]
fn runs_beside_others_are_no_match_for_runs_that_had_the_host_to_themselves() {
    let [shared, alone] = ["true", "false"].map(|share| environment(&[], &[(SHARE, share)]));
    let found = between(["cpu/cmd/a", "cpu/cmd/b"], &shared, &alone);
    let [difference] = &found[..] else {
        panic!("{found:?}");
    };
    assert!(difference.dangerous.is_some());
    assert_eq!(
        (difference.a.as_deref(), difference.b.as_deref()),
        (Some("true"), Some("false"))
    );
    assert!(between(["cpu/cmd/a", "cpu/cmd/b"], &shared, &shared).is_empty());
    // An imported run does not say which it was.
    let unknown = environment(&[], &[]);
    assert!(between(["cpu/cmd/a", "cpu/cmd/b"], &shared, &unknown).is_empty());
    assert!(between(["cpu/cmd/a", "cpu/cmd/b"], &unknown, &alone).is_empty());
}
