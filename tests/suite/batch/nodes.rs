//! A node whose packages are not those that the key says.

use super::*;

#[test]
fn packages_that_differ_from_the_lock_run_nothing_on_a_node() {
    let cluster = Cluster::new();
    let project = &cluster.0;
    let execution = "execution:\n  cpu: { executor: slurm }\n";
    let config = CONFIG.replace(
        "  cmd: { command: [bash, trainer.sh], inputs: [trainer.sh] }",
        "  mine: { python: venv }",
    );
    project
        .write("config.yaml", &format!("{config}{execution}"))
        .edit("matrix.toml", "\"cmd\"", "\"mine\"");
    project
        .write("recipes/mine/recipe.toml", RECIPE)
        .write("recipes/mine/mine.sh.j2", TRAINER);
    let site = "venv/lib/python3.11/site-packages";
    project
        .write("venv/pyvenv.cfg", "home = /usr/bin\n")
        .write(&format!("{site}/torch/__init__.py"), "");
    fs::create_dir_all(project.path("venv/bin")).unwrap();
    std::os::unix::fs::symlink("/usr/bin/python3", project.path("venv/bin/python")).unwrap();
    let metadata = format!("{site}/torch-1.0.dist-info/METADATA");
    project.write(&metadata, "Name: torch\nVersion: 1.0\n");
    cluster.run(&["build"]).ends_with(0);
    assert!(project.read("tprimat.lock").contains("torch = \"1.0\""));
    project.write(&metadata, "Name: torch\nVersion: 2.0\n");
    let ran = cluster.run(&["build", "--force=measured"]).ends_with(1);
    assert!(
        ran.stderr.contains("package torch is 2.0, locked is 1.0"),
        "{}",
        ran.stderr
    );
    assert_eq!(project.launches(), 1);
}

#[test]
fn a_node_is_compared_with_what_the_key_says_also_where_drift_is_allowed() {
    let cluster = Cluster::new();
    let mut build = drifted(&cluster);
    let runs = cluster
        .0
        .names_in("cache/runs")
        .into_iter()
        .find(|name| !name.starts_with('.'))
        .unwrap();
    let spec: serde_json::Value =
        serde_json::from_str(&cluster.0.read(&format!("cache/runs/{runs}/spec.json"))).unwrap();
    let cores = spec["job"]["facts"]["cores"]
        .as_u64()
        .expect("cores are compared");
    assert_ne!(cores, 4096, "this host's, of which the key is made");
    cluster.0.write("go", "");
    assert_eq!(build.wait().unwrap().code(), Some(0));
}

/// A build with --allow-drift under a lock that this host contradicts, whose trainer is up.
fn drifted(cluster: &Cluster) -> Child {
    cluster.0.write("go", "");
    cluster.run(&["build"]).ends_with(0);
    cluster.0.remove("go").remove("up");
    let lock = cluster.0.read("tprimat.lock");
    let cores = lock
        .lines()
        .find(|line| line.starts_with("cores = "))
        .expect("cores are pinned")
        .to_owned();
    cluster.0.edit("tprimat.lock", &cores, "cores = 4096");
    let mut build = cluster.command(
        cluster.0.root(),
        &["build", "--allow-drift", "--force=measured"],
    );
    let build = build
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    until("the trainer runs in its job", || cluster.up() == 1);
    build
}
