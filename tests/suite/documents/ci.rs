//! The page of CI: its workflow, its action, its hook and its exit codes.

use super::*;

/// The commands of all `run:` steps, each on one line.
fn commands(value: &Value, found: &mut Vec<String>) {
    match value {
        Value::Mapping(map) => {
            for (key, value) in map {
                match (key.as_str(), value.as_str()) {
                    (Some("run"), Some(script)) => {
                        found.extend(
                            script
                                .replace("\\\n", " ")
                                .lines()
                                .map(|line| line.trim().to_owned()),
                        );
                    }
                    _ => commands(value, found),
                }
            }
        }
        Value::Sequence(items) => items.iter().for_each(|item| commands(item, found)),
        _ => {}
    }
}

#[test]
fn the_commands_of_the_workflow_exist() {
    let yaml = CI
        .split("```yaml\n")
        .nth(1)
        .and_then(|rest| rest.split("\n```").next())
        .unwrap();
    let mut all = Vec::new();
    commands(&serde_yaml::from_str(yaml).unwrap(), &mut all);
    let plain = CI
        .split("```\n")
        .nth(1)
        .unwrap()
        .lines()
        .map(|l| l.split('#').next().unwrap().trim().to_owned());
    let mut tprimat: Vec<String> = plain
        .chain(all)
        .filter(|c| c.starts_with("tprimat "))
        .collect();
    tprimat.sort();
    tprimat.dedup();
    assert!(tprimat.len() >= 6, "{tprimat:?}");
    let project = Project::empty();
    project
        .run(&["init", "--example", "amd-vs-nvidia"])
        .ends_with(0);
    for command in &tprimat {
        let words = shlex::split(command).unwrap();
        let help = project.run(&[&words[1], "--help"]).ends_with(0).stdout;
        let options = words.iter().filter(|word| word.starts_with('-'));
        for option in options.filter_map(|word| word.split('=').next()) {
            assert!(
                help.contains(&format!("{option} "))
                    || help.contains(&format!("{option},"))
                    || help.contains(&format!("{option}\n")),
                "{command}: {option}"
            );
        }
        assert!(
            !words.contains(&"--require=locked".to_owned())
                || words[1] == "build"
                || words[1] == "plan",
            "{command}"
        );
    }
}

/// The scripts of action.yml in their order, with their inputs' defaults, on a project of its own.
#[test]
fn the_action_measures_gates_and_comments() {
    let action: Value = serde_yaml::from_str(include_str!("../../../action.yml")).unwrap();
    let project = Project::new(ONE_RUN);
    project.run(&["build", "--repeats", "3"]).ends_with(0);
    project
        .run(&["gate", "--repeats", "3", "--write", "baseline.json"])
        .ends_with(0);
    project.edit("matrix.toml", "repeats = 1", "repeats = 3");
    project.write("bin/gh", "#!/bin/sh\necho \"$@\" > commented\n");
    let runner = project.folder().join("runner");
    std::fs::create_dir(&runner).unwrap();
    let outputs = std::cell::RefCell::new(std::collections::BTreeMap::<String, String>::new());
    let steps = action["runs"]["steps"].as_sequence().unwrap();
    let run = |options: &str, undecided: &str| -> Vec<i32> {
        outputs.borrow_mut().clear();
        let filled = |text: &str| {
            let form = regex::Regex::new(r"\$\{\{ *([a-z._-]+) *\}\}").unwrap();
            let value = |found: &regex::Captures| match found[1].split('.').collect::<Vec<_>>()[..]
            {
                ["inputs", "build-options"] => options.to_owned(),
                ["inputs", "undecided-is-failure"] => undecided.to_owned(),
                ["inputs", "tprimat"] => crate::support::TPRIMAT.to_owned(),
                ["inputs", name] => action["inputs"][name]["default"]
                    .as_str()
                    .unwrap()
                    .to_owned(),
                ["runner", "temp"] => runner.display().to_string(),
                ["steps", step, "outputs", name] => {
                    outputs.borrow()[&format!("{step}.{name}")].clone()
                }
                ["github", ..] => "7".to_owned(),
                _ => panic!("{}", &found[0]),
            };
            // A default may itself be an expression: the token's.
            let once = form.replace_all(text, value).into_owned();
            form.replace_all(&once, value).into_owned()
        };
        let mut codes = Vec::new();
        // The first step installs the program, which this test gives.
        for step in steps[1..].iter().filter(|step| step["run"].is_string()) {
            let script = step["run"].as_str().unwrap();
            assert!(!script.contains("${{"), "a value is a part of a script");
            let wanted = project.folder().join("output");
            std::fs::write(&wanted, "").unwrap();
            let env = step["env"].as_mapping().unwrap().iter();
            let env =
                env.map(|(name, value)| (name.as_str().unwrap(), filled(value.as_str().unwrap())));
            let path = std::env::var("PATH").unwrap();
            let ended = project
                .command("bash")
                .args(["--noprofile", "--norc", "-eo", "pipefail", "-c", script])
                .envs(env)
                .env("PATH", format!("{}:{path}", project.path("bin").display()))
                .env("GITHUB_OUTPUT", &wanted)
                .env("GITHUB_STEP_SUMMARY", runner.join("summary.md"))
                .status()
                .unwrap();
            codes.push(ended.code().unwrap());
            for line in std::fs::read_to_string(&wanted).unwrap().lines() {
                let (name, value) = line.split_once('=').unwrap();
                let step = step["id"].as_str().unwrap();
                outputs
                    .borrow_mut()
                    .insert(format!("{step}.{name}"), value.to_owned());
            }
            if ended.code() == Some(2) {
                break;
            }
        }
        codes
    };
    project
        .command("chmod")
        .args(["+x", "bin/gh"])
        .status()
        .unwrap();
    assert_eq!(
        run("--require=locked", "true"),
        [0, 0, 0, 0],
        "the same measurements"
    );
    let report = runner.join("tprimat-gate.md");
    let said = project.read("commented");
    assert!(
        said.contains(&*report.to_string_lossy()) && said.starts_with("pr comment 7 "),
        "{said}"
    );
    assert!(
        std::fs::read_to_string(runner.join("summary.md"))
            .unwrap()
            .contains("cpu/cmd/tiny")
    );
    assert_eq!(run("--no-such-option", "true"), [2]);
    // Four times as slow, and not the same in each run.
    project.edit(
        "trainer.sh",
        "_seconds\":0.0'$seed$step'",
        "_seconds\":0.2'$((RANDOM % 9))$step'",
    );
    project.edit("trainer.sh", "sleep 0.005", "sleep 0.3");
    assert_eq!(run("--require=locked", "true").last(), Some(&3));
    assert_eq!(outputs.borrow()["gate.exit-code"], "3");
}

/// The first step of action.yml, on a host whose pip installs nothing.
#[test]
fn the_action_installs_its_own_checkout_where_path_has_none() {
    let action: Value = serde_yaml::from_str(include_str!("../../../action.yml")).unwrap();
    let step = &action["runs"]["steps"][0];
    assert_eq!(step["if"], "inputs.tprimat == 'tprimat'");
    let project = Project::empty();
    let program = |path: &str, text: &str| {
        project.write(path, text);
        let made = project.command("chmod").args(["+x", path]).status();
        assert!(made.unwrap().success());
    };
    program("bin/python3", "#!/bin/sh\necho \"$@\" >> asked\n");
    let install = || {
        project
            .command("bash")
            .args(["--noprofile", "--norc", "-eo", "pipefail", "-c"])
            .arg(step["run"].as_str().unwrap())
            .env(
                "PATH",
                format!("{}:/usr/bin:/bin", project.path("bin").display()),
            )
            .env("GITHUB_ACTION_PATH", env!("CARGO_MANIFEST_DIR"))
            .env("GITHUB_PATH", project.path("paths"))
            .env("RUNNER_TEMP", project.path("runner"))
            .status()
            .unwrap()
    };
    assert!(install().success());
    let wanted = format!(" {}\n", env!("CARGO_MANIFEST_DIR"));
    assert!(project.read("asked").ends_with(&wanted));
    let folder = project.path("runner/tprimat/bin");
    assert_eq!(project.read("paths"), format!("{}\n", folder.display()));
    // A program that is there is left alone.
    program("bin/tprimat", "#!/bin/sh\n");
    assert!(install().success());
    assert_eq!(project.read("asked").lines().count(), 1);
}

/// The hook runs a command that exists, when a file changes that it checks.
#[test]
fn the_pre_commit_hook_checks_the_projects_files() {
    let hooks: Value =
        serde_yaml::from_str(include_str!("../../../.pre-commit-hooks.yaml")).unwrap();
    let hook = &hooks[0];
    let entry = hook["entry"].as_str().unwrap();
    let project = Project::new(ONE_RUN);
    project
        .run(&[entry.strip_prefix("tprimat ").unwrap()])
        .ends_with(0);
    let files = regex::Regex::new(hook["files"].as_str().unwrap()).unwrap();
    for path in [
        "config.yaml",
        "a/config.yaml",
        "pipelines/x.toml",
        "recipes/r/recipe.toml",
        "templates/t.j2",
    ] {
        assert!(files.is_match(path), "{path}");
    }
    assert!(!files.is_match("src/main.rs") && !files.is_match("other.yaml"));
}

#[test]
fn the_exit_codes_are_the_programs() {
    use tprimat::error::exit;
    let table = CI.split("## Exit codes").nth(1).unwrap();
    let codes: std::collections::BTreeSet<i32> = table
        .lines()
        .filter_map(|l| {
            l.strip_prefix("| ")?
                .split(" |")
                .next()?
                .trim()
                .parse()
                .ok()
        })
        .collect();
    let known = [
        exit::OK,
        exit::FAILED,
        exit::USAGE,
        exit::REGRESSION,
        exit::NOTHING_SELECTED,
        exit::STALE,
        exit::INCONCLUSIVE,
    ];
    assert_eq!(codes, known.into());
}
