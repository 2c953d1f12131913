//! One thing that is missing keeps one cell from being measured, not the others.

use crate::support::{ONE_RUN, Project, Ran, mock, tasks::RECIPE};

const CELL: &str = "cpu/cmd/tiny/single";

/// A second framework, whose launcher nobody has.
fn with_a_launcher_that_is_not_there() -> Project {
    let project = Project::new(&ONE_RUN.replace("\"cmd\"", "[\"cmd\", \"own\"]"));
    let own = RECIPE.replace("id = \"cmd\"", "id = \"own\"").replace(
        "commands = [\"bash\"]",
        "commands = [\"bash\", \"nobody-has-this-launcher\"]",
    );
    project.write("recipes/own/recipe.toml", &own);
    project.edit(
        "config.yaml",
        "frameworks:\n",
        "frameworks:\n  own: { command: [bash, trainer.sh, own], inputs: [trainer.sh] }\n",
    );
    project
}

fn why(ran: &Ran) -> String {
    ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn freeing_gpus_ends_nothing_where_no_run_left_anything() {
    let project = Project::empty();
    let ran = project
        .run(&["doctor", "--free-gpus", "--yes"])
        .ends_with(0);
    assert!(
        ran.stderr
            .contains("no run of yours left a process on a GPU"),
        "{ran:?}"
    );
    project.run(&["doctor", "--yes"]).ends_with(2);
}

/// Its user has not asked for `--free-gpus`, and nobody's run holds the GPU's lock.
#[test]
fn the_doctor_names_the_process_that_uses_a_gpu() {
    let project = Project::new(ONE_RUN);
    let library = project.folder().join("libnvidia-ml.so.1");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/mock_nvml.c");
    let mut compiler = std::process::Command::new("cc");
    compiler.args(["-shared", "-fPIC", "-o"]).arg(&library);
    assert!(compiler.arg(source).status().unwrap().success());
    let mut other = std::process::Command::new("sleep")
        .arg("60")
        .spawn()
        .unwrap();
    let doctor = |arguments: &[&str], pid: &str| -> Ran {
        let mut command = project.tprimat(arguments);
        command.env("LD_LIBRARY_PATH", project.folder());
        command.env("MOCK_PID", pid).output().unwrap().into()
    };
    let pid = other.id().to_string();
    let page = doctor(&["doctor"], &pid).ends_with(0).stdout;
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let gpu = "GPU 0: Mock GPU, 80 of 140 GiB are free, driver 1.2.3:";
    assert!(
        page.contains(&format!("!! {gpu} used by process {pid} (sleep, user ")),
        "{page}"
    );
    let found = doctor(&["doctor", "--json"], &pid).ends_with(0).json();
    let findings = found["findings"].as_array().unwrap();
    let found = findings.iter().find(|found| found["holders"].is_array());
    let found = found.unwrap_or_else(|| panic!("{findings:?}"));
    let holder = &found["holders"][0];
    assert_eq!(
        (&holder["pid"], &holder["program"]),
        (&other.id().into(), &"sleep".into())
    );
    assert!(
        holder["since"].is_string() && holder["user"].is_string(),
        "{holder}"
    );
    assert_eq!(found["free_memory_bytes"], 80_u64 << 30);
    other.kill().unwrap();
    other.wait().unwrap();
    let page = doctor(&["doctor"], "").ends_with(0).stdout;
    let page = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let is_clear = [
        " free",
        " no process is seen on it from inside this container",
    ];
    assert!(
        is_clear
            .iter()
            .any(|end| page.contains(&format!("ok {gpu}{end}"))),
        "{page}"
    );
}

/// Another host may have the launcher, so the matrix is not wrong.
#[test]
fn a_check_passes_where_another_host_may_measure_a_cell() {
    let project = with_a_launcher_that_is_not_there();
    project
        .edit(
            "config.yaml",
            "trainer.sh, own], inputs: [trainer.sh]",
            "own.sh]",
        )
        .edit("config.yaml", ", inputs: [trainer.sh]", "")
        .write("own.sh", "true\n")
        .remove("trainer.sh");
    let check = project.run(&["check"]).ends_with(0);
    assert!(
        check.stdout.contains("2 cells cannot be measured here now"),
        "{check:?}"
    );
}

#[test]
fn one_missing_launcher_blocks_the_cells_that_need_it() {
    let project = with_a_launcher_that_is_not_there();
    let built = project.run(&["build"]).ends_with(0);
    let said = why(&built);
    let needs = "recipe `own` needs the command `nobody-has-this-launcher`, which is not there";
    assert!(
        said.contains(&format!("left out: cpu/own/tiny/single: {needs}")),
        "{said}"
    );
    assert!(
        said.contains("1 of 2 selected cells have results; 1 cannot be measured on this host"),
        "{said}"
    );
    assert_eq!(project.launches(), 1);
    assert!(project.read("output/compare.txt").contains(CELL));
    // Nothing else is to be done now: the table of the others is shown all the same, and why one is
    // missing.
    let again = project.run(&["build"]).ends_with(0);
    assert!(
        again.stdout.contains(CELL) && why(&again).contains("1 of 2 selected cells have results"),
        "{again:?}"
    );
    assert!(why(&again).contains(needs), "{again:?}");
    let value = project.run(&["build", "--json"]).ends_with(0).json();
    assert_eq!(
        (&value["blocked"], &value["summary"]["blocked"]),
        (&1.into(), &3.into()),
        "{value}"
    );
    // Nothing in this selection can be measured here.
    let alone = project.run(&["build", "--only", "*/own"]).ends_with(1);
    assert!(
        why(&alone).contains("0 of 1 selected cells have results") && why(&alone).contains(needs),
        "{alone:?}"
    );
    // Whoever only looks is told as well, and nothing is started for it.
    let plan = project.run(&["plan"]).ends_with(0);
    assert!(
        plan.stdout.contains("blocked      cpu/own/tiny/single") && plan.stdout.contains(needs),
        "{plan:?}"
    );
    let check = project.run(&["check"]).ends_with(0);
    assert!(
        why(&check).contains(&format!(
            "cpu/own/tiny/single cannot be measured here now: {needs}"
        )),
        "{check:?}"
    );
    assert!(
        check.stdout.contains("1 cell cannot be measured here now"),
        "{check:?}"
    );
    // What is missing is not pinned as missing: once it is there, the lock does not stand in the
    // way.
    assert!(
        !project.read("tprimat.lock").contains("recipe.own"),
        "{}",
        project.read("tprimat.lock")
    );
    project.run(&["build", "--only", CELL]).ends_with(0);
    // Whoever needs the whole matrix says so.
    project.edit("trainer.sh", "for step in", "# again\nfor step in");
    let built = project
        .run(&["build", "--require=complete", "--json"])
        .ends_with(5)
        .json();
    assert_eq!(
        (&built["blocked"], &built["incomplete"]),
        (&1.into(), &1.into())
    );
    assert_eq!(project.launches(), 2);
}

#[test]
fn a_fact_that_drifted_blocks_its_platform_alone() {
    let project = Project::new(&ONE_RUN.replace("\"cpu\"", "[\"cpu\", \"cpu2\"]"));
    project.edit(
        "config.yaml",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n    cpu2: { vendor: cpu, num_gpus: 1 }\n",
    );
    project.run(&["build"]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let (before, of_second) = lock.split_once("[platform.cpu2]").unwrap();
    let cores = of_second
        .lines()
        .find(|line| line.starts_with("cores = "))
        .unwrap();
    project.write(
        "tprimat.lock",
        &format!(
            "{before}[platform.cpu2]{}",
            of_second.replace(cores, "cores = 4711")
        ),
    );
    project.edit("trainer.sh", "for step in", "# again\nfor step in");
    let before = project.launches();
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        why(&built).contains("this host differs from tprimat.lock: cpu2, cores"),
        "{built:?}"
    );
    assert_eq!(project.launches() - before, 1);
}

#[test]
fn a_selection_of_which_nothing_can_be_measured_here_is_no_success() {
    let project = Project::new(&ONE_RUN.replace("\"cpu\"", "[\"cpu\", \"amd\"]"));
    project.edit(
        "config.yaml",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n",
        "    cpu: { vendor: cpu, num_gpus: 1 }\n    amd: { vendor: amd, num_gpus: 1 }\n",
    );
    let built = project.run(&["build", "--only", "amd"]).ends_with(1);
    let said = why(&built);
    assert!(
        said.contains("0 of 1 selected cells have results; 1 cannot be measured on this host"),
        "{said}"
    );
    assert!(
        said.contains("needs an AMD GPU; this host has none"),
        "{said}"
    );
    // With the others it is: they are measured.
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
}

/// A folder that looks like a virtual environment: an interpreter that is a script, and installed
/// packages.
fn environment(project: &Project, name: &str, packages: &[(&str, &str)]) {
    let site = format!("{name}/lib/python3.12/site-packages");
    project.write(
        &format!("{name}/pyvenv.cfg"),
        "home = /usr/bin\ninclude-system-site-packages = false\n",
    );
    let program = format!(
        "#!/bin/sh\ncase \"$*\" in *find_spec*) a=; for m in \"$@\"; do case $m in mod_*) [ -e '{site}'/$m ] || a=\"$a${{a:+, }}\\\"$m\\\"\";; esac; done; echo \"[$a]\";; esac\n",
        site = project.path(&site).display()
    );
    mock::program(&project.path(&format!("{name}/bin/python")), program);
    project.write(
        &format!("{site}/README.txt"),
        "what pip installs lies here\n",
    );
    for (package, version) in packages {
        project.write(&format!("{site}/mod_{package}/__init__.py"), "");
        project.write(
            &format!("{site}/{package}-{version}.dist-info/METADATA"),
            &format!("Version: {version}\n"),
        );
    }
}

/// Two frameworks that need other versions of one package: each has its own interpreter, looked at,
/// locked and launched as such.
#[test]
fn every_framework_may_have_a_python_of_its_own() {
    let mut project = Project::new(&ONE_RUN.replace("\"cmd\"", "[\"one\", \"two\"]"));
    for id in ["one", "two"] {
        let recipe = RECIPE.replace("id = \"cmd\"", &format!("id = {id:?}"));
        let require = "commands = [\"bash\"]\npython_modules = [\"mod_a\"]\npip = { mod_a = \"a-on-the-index\" }";
        let recipe = recipe.replace("commands = [\"bash\"]", require);
        let recipe = recipe.replace("[lock]\n", "[lock]\npackages = [\"a\"]\n");
        assert!(
            recipe.contains("packages = [\"a\"]") && recipe.contains("mod_a"),
            "{recipe}"
        );
        project.write(&format!("recipes/{id}/recipe.toml"), &recipe);
    }
    project.write(
        "trainer.sh",
        &format!(
            "echo \"$TPRIMAT_PYTHON\" >> \"$TPRIMAT_PROJECT_DIR/pythons\"\n{}",
            project.read("trainer.sh")
        ),
    );
    project.edit(
        "config.yaml",
        "frameworks:\n",
        "frameworks:\n  one: { command: [bash, trainer.sh, one], inputs: [trainer.sh], python: envs/one }\n  two: { command: [bash, trainer.sh, two], inputs: [trainer.sh], python: envs/two/bin/python }\n",
    );
    environment(&project, "envs/one", &[("a", "1.0")]);
    environment(&project, "envs/two", &[]);
    // The advice names the distribution, and the interpreter that lacks it.
    let plan = project.run(&["plan"]).ends_with(0);
    let needs = "recipe `two` needs the Python module `mod_a`, which `";
    let mends = "envs/two/bin/python -m pip install a-on-the-index`";
    assert!(
        plan.stdout.contains(needs) && plan.stdout.contains(mends),
        "{}",
        plan.stdout
    );
    let built = project.run(&["build"]).ends_with(0);
    assert!(
        why(&built).contains(needs) && why(&built).contains("1 of 2 selected cells have results"),
        "{built:?}"
    );
    // It may be in a folder that the run is told of; one that the caller's shell names is not passed on.
    project.write("../folder/mod_a.py", "");
    let folder = project.path("../folder").display().to_string();
    let named = format!("frameworks.two.env.PYTHONPATH={folder}");
    let plan = project.run(&["plan", "--set", &named]).ends_with(0);
    assert!(!plan.stdout.contains(needs), "{}", plan.stdout);
    project.environment.push(("PYTHONPATH", folder));
    let plan = project.run(&["plan"]).ends_with(0);
    assert!(plan.stdout.contains(needs), "{}", plan.stdout);
    project.environment.pop();
    environment(&project, "envs/two", &[("a", "2.0")]);
    project.run(&["build"]).ends_with(0);
    let lock = project.read("tprimat.lock");
    let of = |id: &str| {
        lock.split(&format!("recipe.{id}.packages]"))
            .nth(1)
            .unwrap()
            .lines()
            .nth(1)
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        (of("one"), of("two")),
        ("a = \"1.0\"".to_owned(), "a = \"2.0\"".to_owned()),
        "{lock}"
    );
    let pythons = project.read("pythons");
    let started: Vec<&str> = pythons
        .lines()
        .map(|line| line.rsplit("/envs/").next().unwrap())
        .collect();
    assert_eq!(started, ["one/bin/python", "two/bin/python"], "{pythons}");
}
