//! `container build` and `shell` with a mock of docker, and without one.

use std::fs;

use crate::support::{ONE_RUN, Project, Ran, mock::program};

/// A mock: prints how it was called and what lies in the build context; knows one image.
const DOCKER: &str = r#"#!/bin/bash
echo "docker $*"
case "$1" in
  build) for last; do :; done; ls "$last"; cat "$last/Dockerfile" ;;
  image) for last; do :; done; [ "$last" = tprimat/tran:nvd ] ;;
  run) echo "own=$NCCL_DEBUG"; while [ $# -gt 0 ]; do [ "$1" = --env-file ] && cat "$2"; shift; done ;;
esac
"#;

fn project() -> Project {
    let project = Project::new(ONE_RUN);
    let platforms = "    cpu: { vendor: cpu, num_gpus: 1 }\n";
    let gpus = "    h100: { vendor: nvd, num_gpus: 8, env: { NCCL_DEBUG: 'IN FO' } }\n    amd: { num_gpus: 8 }\n";
    project.edit("config.yaml", platforms, &format!("{platforms}{gpus}"));
    project.edit(
        "config.yaml",
        "inputs: [trainer.sh] }",
        "inputs: [trainer.sh] }\n  tran: { image: { nvd: my/base:1 } }",
    );
    project
}

fn run(project: &Project, arguments: &[&str], with_docker: bool) -> Ran {
    let bin = project.folder().join("bin");
    fs::create_dir_all(&bin).unwrap();
    let _ = fs::remove_file(bin.join("docker"));
    let mut path = bin.to_str().unwrap().to_owned();
    if with_docker {
        program(&bin.join("docker"), DOCKER);
        path = format!("{path}:{}", std::env::var("PATH").unwrap());
    }
    project
        .tprimat(arguments)
        .env("PATH", path)
        .env("HF_TOKEN", "secret")
        .output()
        .unwrap()
        .into()
}

/// Errors without the breaks of their lines.
fn said(ran: &Ran) -> String {
    ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn an_image_is_rendered_and_built() {
    let project = project();
    let printed = run(
        &project,
        &["container", "build", "h100/tran/tiny", "--print"],
        false,
    )
    .ends_with(0);
    assert!(
        printed.stdout.contains("\nFROM my/base:1\n"),
        "config.yaml's image: {}",
        printed.stdout
    );
    assert!(
        printed
            .stdout
            .ends_with("# docker build --tag tprimat/tran:nvd .\n"),
        "{}",
        printed.stdout
    );

    let arguments = [
        "container",
        "build",
        "tran",
        "--platform",
        "h100",
        "--base",
        "other:2",
        "--user",
        "1000",
    ];
    let built = run(&project, &arguments, true).ends_with(0);
    for part in [
        "docker build --tag tprimat/tran:nvd /",
        "requirements.txt",
        "FROM other:2",
        "USER 1000",
    ] {
        assert!(built.stdout.contains(part), "{part}: {}", built.stdout);
    }
    let torch_of_the_base = "sed -i '/^torch==/d'";
    assert!(built.stdout.contains(torch_of_the_base), "{}", built.stdout);
    let native = [
        "container",
        "build",
        "native",
        "--platform",
        "h100",
        "--base",
        "other:2",
        "--print",
    ];
    let native = run(&project, &native, false).ends_with(0);
    assert!(
        !native.stdout.contains(torch_of_the_base),
        "its libtorch is one exactly: {}",
        native.stdout
    );
    let missing = run(&project, &arguments, false).ends_with(1);
    assert!(
        missing.stderr.contains("neither docker nor podman"),
        "{}",
        missing.stderr
    );
    let base = run(
        &project,
        &["container", "build", "cmd", "--platform", "amd"],
        true,
    )
    .ends_with(2);
    assert!(
        said(&base).contains("frameworks.cmd.image.amd: any that has what your command needs"),
        "{base:?}"
    );
    let base = run(
        &project,
        &["container", "build", "native", "--platform", "h100"],
        true,
    )
    .ends_with(2);
    let help = "--base, or in frameworks.native.image.nvd: any with python3 and pip, which install recipes/native/requirements.nvd.txt";
    assert!(said(&base).contains(help), "{base:?}");
    run(&project, &["container", "build", "tran"], true).ends_with(2);
    run(
        &project,
        &["container", "build", "prim", "--platform", "h100"],
        true,
    )
    .ends_with(2);
}

#[test]
fn the_image_that_config_names_is_the_one_that_is_pulled_and_used() {
    let stated = |image: &str| {
        let project = project();
        let text = project.read("config.yaml");
        project.write(
            "config.yaml",
            &format!("{text}\nexecution:\n  h100: {{ container: {{ image: \"{image}\" }} }}\n"),
        );
        project
    };
    let pull = ["container", "pull", "tran", "--platform", "h100", "--print"];
    assert_eq!(
        run(&project(), &pull, true).ends_with(0).stdout,
        "docker pull my/base:1\n"
    );
    assert_eq!(
        run(&stated("mine:2"), &pull, true).ends_with(0).stdout,
        "docker pull mine:2\n"
    );
    let wrong = run(&stated("mine 2"), &pull, true).ends_with(2);
    assert!(
        said(&wrong).contains("`mine 2` cannot be the name of an image"),
        "{}",
        wrong.stderr
    );
    let file = run(&stated("/images/nemo.sif"), &pull, true).ends_with(2);
    assert!(
        said(&file).contains("`/images/nemo.sif` is a file"),
        "{}",
        file.stderr
    );
    // That nobody can tell is not the same as that it is not here.
    let listed = run(&project(), &["container", "list", "--json"], false)
        .ends_with(0)
        .json();
    let text = listed.to_string();
    assert!(
        text.contains("\"digest\":null") && text.contains("\"unknown\":\"there is neither docker"),
        "{text}"
    );
}

/// Runs are started with this engine, so an image that another one made would not be there.
#[test]
fn the_engine_of_the_platform_builds_pulls_lists_and_opens_its_images() {
    let project = project();
    let text = project.read("config.yaml");
    let platform = |engine: &str| {
        let stated = format!("{text}\nexecution:\n  h100: {engine}\n");
        project.write("config.yaml", &stated);
    };
    let bin = project.folder().join("bin");
    let with_both = |arguments: &[&str]| {
        let podman = DOCKER.replace("\"docker $*\"", "\"podman $*\"");
        program(&bin.join("podman"), podman);
        run(&project, arguments, true).ends_with(0)
    };
    let build = ["container", "build", "tran", "--platform", "h100"];
    let pull = ["container", "pull", "tran", "--platform", "h100"];
    let shell = [
        "container",
        "shell",
        "h100",
        "--framework",
        "tran",
        "--",
        "true",
    ];
    for stated in [
        "{ container: { engine: podman } }",
        "{ executor: podman }",
        "{ executor: slurm+container, container: { engine: podman } }",
    ] {
        platform(stated);
        for arguments in [&build[..], &pull, &shell] {
            let ran = with_both(arguments);
            let is_podman = ran.stdout.lines().any(|line| line.starts_with("podman "));
            assert!(is_podman && !ran.stdout.contains("docker "), "{ran:?}");
            let with_print = [&arguments[..2], &["--print"], &arguments[2..]].concat();
            let printed = with_both(&with_print).stdout;
            assert!(printed.contains("podman "), "{printed}");
        }
        let listed = with_both(&["container", "list", "--json"]).json();
        let images = listed["images"].as_array().unwrap();
        let digest = |platform: &str| {
            let row = images
                .iter()
                .find(|row| row["platform"] == platform && row["framework"] == "tran");
            row.unwrap()["digest"].to_string()
        };
        assert!(digest("h100").contains("podman image inspect"), "{listed}");
    }
    // It is the platform's, and not the host's: without it nothing else is taken.
    fs::remove_file(bin.join("podman")).unwrap();
    let path = bin.display().to_string();
    let absent = project.tprimat(&build).env("PATH", path).output().unwrap();
    let absent = Ran::from(absent).ends_with(1);
    assert!(
        said(&absent).contains("there is no podman in PATH"),
        "{absent:?}"
    );
    // Neither docker nor podman makes what Apptainer opens.
    platform("{ executor: apptainer }");
    let other = run(&project, &build, true).ends_with(2);
    assert!(
        said(&other).contains("works with docker and podman") && other.stdout.is_empty(),
        "{other:?}"
    );
}

#[test]
fn the_next_step_after_an_image_is_said() {
    let project = project();
    let pull = ["container", "pull", "tran", "--platform", "h100"];
    let pulled = run(&project, &pull, true).ends_with(0);
    let base = "pulled with docker: my/base:1 is only the base image of tran; `tprimat container build tran --platform h100` makes tprimat/tran:nvd";
    assert!(said(&pulled).contains(base), "{pulled:?}");
    let build = ["container", "build", "tran", "--platform", "h100"];
    let built = run(&project, &build, true).ends_with(0);
    let runs = "`tprimat build --only h100/tran --executor container` runs in it";
    assert!(said(&built).contains(runs), "{built:?}");
    let text = project.read("config.yaml");
    let stated = "\nexecution:\n  h100: { executor: docker, container: { image: mine:2 } }\n";
    project.write("config.yaml", &format!("{text}{stated}"));
    let pulled = run(&project, &pull, true).ends_with(0);
    let runs = "pulled with docker: mine:2 is the image of h100/tran; `tprimat build --only h100/tran` runs in it";
    assert!(said(&pulled).contains(runs), "{pulled:?}");
    let built = run(&project, &build, true).ends_with(0);
    let other = "runs of h100/tran use the image mine:2";
    assert!(said(&built).contains(other), "{built:?}");
}

/// Of an image that nobody publishes, `container pull` would fetch the base alone.
#[test]
fn what_makes_a_missing_image_is_offered_and_nothing_else() {
    let project = project();
    let stated = |image: &str| {
        let text = project.read("config.yaml");
        let text = text.split("\nexecution:").next().unwrap();
        let text = format!("{text}\nexecution:\n  cpu: {{ executor: docker{image} }}\n");
        project.write("config.yaml", &text);
        let plan = run(&project, &["plan"], true);
        let text = format!("{}{}", plan.stdout, plan.stderr);
        text.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let own = stated("");
    assert!(
        own.contains("`tprimat container build cmd --platform cpu` makes it")
            && !own.contains("container pull"),
        "{own}"
    );
    let published = stated(", container: { image: 'lab/x:1' }");
    let both = "`tprimat container pull cmd --platform cpu` fetches it, `tprimat container build cmd --platform cpu --tag lab/x:1` makes one";
    assert!(published.contains(both), "{published}");
}

#[test]
fn a_shell_has_the_devices_the_project_and_the_environment_by_name() {
    let project = project();
    let ran = run(
        &project,
        &[
            "container",
            "shell",
            "h100",
            "--framework",
            "tran",
            "--",
            "nvidia-smi",
            "-L",
        ],
        true,
    )
    .ends_with(0);
    let line = ran
        .stdout
        .lines()
        .find(|l| l.starts_with("docker run"))
        .expect("docker is run");
    let root = project.root();
    let user = format!(
        "--user {}:{} ",
        nix::unistd::geteuid(),
        nix::unistd::getegid()
    );
    let home = project.path("cache/container-home");
    assert!(
        home.is_dir() && ran.stdout.contains(&format!("HOME={}\n", home.display())),
        "{ran:?}"
    );
    for part in [
        user.as_str(),
        "--gpus all",
        "--env HF_TOKEN",
        "--env-file ",
        " tprimat/tran:nvd nvidia-smi -L",
    ] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(
        line.contains(&format!("--volume {0}:{0}", root.display())),
        "{line}"
    );
    assert!(
        !line.contains("secret") && !line.contains("IN FO"),
        "values are not for a list of processes: {line}"
    );
    assert!(
        ran.stdout.contains("NCCL_DEBUG=IN FO"),
        "but the container has them: {}",
        ran.stdout
    );
    assert!(
        ran.stdout.contains("own=\n"),
        "and docker itself does not: {}",
        ran.stdout
    );

    let absent = run(
        &project,
        &["container", "shell", "amd", "--framework", "prim"],
        true,
    )
    .ends_with(1);
    assert!(
        absent
            .stderr
            .contains("tprimat container build prim --platform amd"),
        "{}",
        absent.stderr
    );
    let printed = run(
        &project,
        &[
            "container",
            "shell",
            "amd",
            "--framework",
            "prim",
            "--print",
        ],
        false,
    )
    .ends_with(0);
    assert!(
        printed.stdout.contains("/dev/kfd") && printed.stdout.contains("--group-add video"),
        "{}",
        printed.stdout
    );
}

/// As a run in a container has it, or what works in the shell fails in a build, and the other way round.
#[test]
fn a_shell_has_checkouts_caches_and_locks_as_a_run_does() {
    let project = project();
    let folder = |name: &str| {
        let path = project.folder().join(name);
        fs::create_dir_all(&path).unwrap();
        path.display().to_string()
    };
    let [primus, home, locks, more] = ["Primus", "hf", "device-locks", "more"].map(folder);
    let printed = project
        .tprimat(&[
            "container",
            "shell",
            "amd",
            "--framework",
            "prim",
            "--print",
            "--volume",
            &more,
        ])
        .env("PRIMUS_PATH", &primus)
        .env("HF_HOME", &home)
        .output()
        .unwrap();
    let line = Ran::from(printed).ends_with(0).stdout.replace('\'', "");
    for part in [
        format!("--volume {primus}:{primus}:ro"),
        format!("--env PRIMUS_PATH={primus}"),
        format!("--volume {home}:{home}"),
        "--env HF_HOME".to_owned(),
        format!("--volume {locks}:{locks}"),
        "--env TPRIMAT_LOCK_DIR".to_owned(),
        format!("--volume {more}:{more}"),
    ] {
        assert!(line.contains(&part), "{part}: {line}");
    }
}
