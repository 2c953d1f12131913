//! What trainers get of the environment: secrets, proxies, a port.

use std::fs;

use crate::support::{ONE_RUN, Project, Ran, files_below};

#[test]
fn a_setting_with_the_name_of_a_secret_is_told_of() {
    let project = Project::new(ONE_RUN);
    let env = "env: { SORT_KEY: length, NUM_PASS: 3, HF_TOKEN: \"${HF_TOKEN:-none_of_it}\", PLAIN: word }";
    project.edit(
        "config.yaml",
        "num_gpus: 1 }\n",
        &format!("num_gpus: 1, {env} }}\n"),
    );
    for command in ["check", "plan"] {
        let told = project.run(&[command]).ends_with(0).stderr;
        assert!(
            told.contains("`hardware.platforms.cpu.env.SORT_KEY` looks like a secret"),
            "{told}"
        );
        assert!(
            told.contains("`SORT_KEY=… python …`") && !told.contains("length"),
            "{told}"
        );
        assert_eq!(told.matches("looks like a secret").count(), 1, "{told}");
    }
}

#[test]
fn secrets_reach_trainers_and_nothing_else() {
    const SECRET: &str = "hf_5ecret0fThisTest";
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "job()",
        "echo token of ${#HF_TOKEN} characters, nccl ${NCCL_DEBUG-unset}, unbuffered $PYTHONUNBUFFERED\njob()",
    );
    // What is declared is not missing, whatever the caller has.
    project.edit(
        "config.yaml",
        "inputs: [trainer.sh] }",
        "inputs: [trainer.sh], env: { WANDB_MODE: disabled } }",
    );
    let build = project
        .tprimat(&["build"])
        .env("HF_TOKEN", SECRET)
        .env("NCCL_DEBUG", "INFO")
        .env("WANDB_PROJECT", "mine")
        .env("WANDB_MODE", "offline")
        .output()
        .unwrap();
    let ran = Ran::from(build).ends_with(0);
    assert!(!ran.stderr.contains(SECRET) && !ran.stdout.contains(SECRET));
    let told = "not passed to trainers: NCCL_DEBUG, WANDB_PROJECT; `frameworks.cmd.env: { NCCL_DEBUG: \"${NCCL_DEBUG}\" }`";
    assert!(ran.stderr.contains(told), "{}", ran.stderr);
    let log = project
        .run(&["logs", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    assert!(
        log.contains(&format!(
            "token of {} characters, nccl unset, unbuffered 1",
            SECRET.len()
        )),
        "{log}"
    );
    let cache = tprimat::cache::Cache::open(&project.path("cache")).unwrap();
    for path in files_below(project.root()) {
        let name = path
            .strip_prefix(project.path("cache/objects"))
            .ok()
            .map(|p| p.to_str().unwrap().replace('/', ""));
        let bytes = match name.and_then(|name| name.parse().ok()) {
            Some(digest) => cache.get(&digest).unwrap().unwrap(),
            None => fs::read(&path).unwrap(),
        };
        assert!(
            !String::from_utf8_lossy(&bytes).contains(SECRET),
            "{}",
            path.display()
        );
    }
}

/// It is chosen when the run begins, not when it is planned.
#[test]
fn every_run_has_a_port_of_its_own() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "seed=$(job seed)",
        "seed=$(job seed); echo \"port $TPRIMAT_PORT\"",
    );
    project.run(&["build"]).ends_with(0);
    let log = project
        .run(&["logs", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    let port = log.lines().find_map(|line| line.strip_prefix("port "));
    assert!(
        port.is_some_and(|port| port.parse::<u16>().is_ok_and(|port| port > 1023)),
        "{log}"
    );
}

/// Some programs read these variables in one case only.
#[test]
fn proxies_reach_the_trainer_in_either_case() {
    let project = Project::new(ONE_RUN);
    let trainer = project.read("trainer.sh");
    let noting =
        format!("echo \"$HTTPS_PROXY $no_proxy\" > \"$TPRIMAT_PROJECT_DIR/proxies\"\n{trainer}");
    project.write("trainer.sh", &noting);
    let built = project
        .tprimat(&["build"])
        .env("HTTPS_PROXY", "http://p:1")
        .env("no_proxy", "q")
        .output()
        .unwrap();
    crate::support::Ran::from(built).ends_with(0);
    assert_eq!(project.read("proxies"), "http://p:1 q\n");
}
