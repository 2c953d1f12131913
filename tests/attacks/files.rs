//! Files that are not what they seem: links, pipes, devices, bombs, names that are commands.

use std::{
    fs,
    io::Write,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

use tprimat::{
    cache::{Cache, TaskKind},
    digest::Digest,
    files::Durability,
};

use crate::{
    arena::{Arena, mode_of, permit},
    support::{ONE_RUN, files_below},
};

const LOG: &str = r#"{"event":"start","schema":"tprimat.events/1","trainer":"x","effective":{}}
{"event":"step","step":1,"step_time_seconds":0.1,"loss":2.0,"tokens":32}
{"event":"end","status":"ok","steps":1}
"#;
pub const PRIVATE: &str = "aws_secret_access_key = PRIVATE-LINE-OF-A-FILE\n";

fn pipe(path: &Path) {
    nix::unistd::mkfifo(path, nix::sys::stat::Mode::S_IRWXU).unwrap();
}

/// No file below the folder has the line; objects are small enough to be stored as they are.
#[track_caller]
pub fn is_nowhere(line: &str, below: &Path) {
    for path in files_below(below) {
        let bytes = fs::read(&path).unwrap();
        assert!(
            !bytes.windows(line.len()).any(|w| w == line.as_bytes()),
            "it is in {}",
            path.display()
        );
    }
}

#[test]
fn an_imported_folder_brings_nothing_that_it_links_to() {
    let arena = Arena::new();
    let root = arena.project("project");
    let private = arena.write("home/credentials", PRIVATE);
    arena.write("logs/good.log", LOG);
    symlink(&private, arena.path("logs/run.log")).unwrap();
    symlink("/dev/zero", arena.path("logs/zero.log")).unwrap();
    symlink(arena.path("home"), arena.path("logs/rank-0")).unwrap();
    pipe(&arena.path("logs/pipe.log"));
    let ran = arena.run(&root, &["import", "../logs"]);
    assert_eq!(ran.code, Some(0), "{ran:?}");
    is_nowhere(PRIVATE, &root);
    // What is no log is not stored either, though the caller named it.
    let ran = arena.run(&root, &["import", "../home/credentials"]);
    assert_eq!(ran.code, Some(2), "{ran:?}");
    is_nowhere(PRIVATE, &root);
    // What is imported from a private file stays private.
    let own = arena.write("logs/own.log", &LOG.replace("2.0", "3.0"));
    permit(&own, 0o600);
    let before = files_below(&root.join("cache/objects"));
    assert_eq!(
        arena.run(&root, &["import", "../logs/own.log"]).code,
        Some(0)
    );
    let raw = fs::read(&own).unwrap();
    let new = files_below(&root.join("cache/objects"))
        .into_iter()
        .filter(|path| !before.contains(path));
    let stored: Vec<_> = new.filter(|path| fs::read(path).unwrap() == raw).collect();
    assert_eq!(
        stored.iter().map(|path| mode_of(path)).collect::<Vec<_>>(),
        [0o400]
    );
}

#[test]
fn nobody_waits_for_a_pipe_or_reads_a_device() {
    let arena = Arena::new();
    let root = arena.project("project");
    for (name, command) in [
        ("tprimat.lock", &["plan"] as &[&str]),
        ("config.yaml", &["plan"]),
        ("matrix.toml", &["plan"]),
        ("recipes/evil/recipe.toml", &["check"]),
        ("trainer.sh", &["plan"]),
        ("a.log", &["import", "a.log"]),
        ("a.log", &["parse", "a.log"]),
        (
            "a.log",
            &["import", "cpu/cmd/tiny/single", "--log", "a.log"],
        ),
        ("d.bin", &["data", "verify", "d"]),
        ("run.json", &["import", "run.json"]),
    ] {
        let path = root.join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        arena.write("project/d.idx", "MMIDIDX");
        let kept = fs::read(&path).ok();
        for device in [false, true] {
            let _ = fs::remove_file(&path);
            if device {
                symlink("/dev/zero", &path).unwrap()
            } else {
                pipe(&path)
            }
            let ran = arena.run(&root, command);
            // A recipe.toml that is no file makes no recipe; all else is an error.
            assert!(
                ran.code != Some(0) || name.starts_with("recipes/"),
                "{name} {command:?}: {ran:?}"
            );
        }
        fs::remove_file(&path).unwrap();
        if let Some(kept) = kept {
            fs::write(&path, kept).unwrap();
        }
        let _ = fs::remove_dir_all(root.join("recipes"));
    }
}

#[test]
fn messages_quote_no_file_that_a_project_links_to() {
    let arena = Arena::new();
    let root = arena.project("project");
    let private = arena.write("home/credentials", PRIVATE);
    fs::create_dir_all(root.join("recipes/evil")).unwrap();
    fs::create_dir_all(root.join("templates")).unwrap();
    for name in [
        "tprimat.lock",
        "matrix.toml",
        "config.yaml",
        "recipes/evil/recipe.toml",
    ] {
        let path = root.join(name);
        let kept = fs::read(&path).ok();
        let _ = fs::remove_file(&path);
        symlink(&private, &path).unwrap();
        let ran = arena.run(&root, &["plan"]);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert!(
            ran.code == Some(2) && !said.contains("PRIVATE"),
            "{name}: {ran:?}"
        );
        assert!(said.contains(" leads"), "{name}: {ran:?}");
        fs::remove_file(&path).unwrap();
        if let Some(kept) = kept {
            fs::write(&path, kept).unwrap();
        }
    }
    let recipe = "id = \"evil\"\nname = \"x\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = [\"../../home/credentials\"]\n\
        command = [\"true\"]\n[log]\nformat = \"tprimat\"\n";
    arena.write("project/recipes/evil/recipe.toml", recipe);
    let ran = arena.run(&root, &["plan"]);
    assert!(
        ran.code == Some(2) && ran.stderr.contains(" leads"),
        "{ran:?}"
    );
}

/// A run as a supervisor leaves it, which nobody made: all but its log, whose path this returns.
pub fn plant(arena: &Arena, root: &Path, id: &str) -> PathBuf {
    let spec = serde_json::json!({
        "run_id": "00evil", "dir": root.join("cache/runs/00evil"), "argv": ["true"], "cwd": "/", "timeout_seconds": null,
        "grace_seconds": 1e9, "devices": ["cpu"], "exclusive": true, "lock_dir": "/tmp",
        "meta": { "key": Digest::of("x"), "task": "train cpu/cmd/tiny/single#1", "preimage": "x", "generation": 0 },
    });
    let exit = r#"{"status":{"code":0},"started_at":1.0,"ended_at":2.0,"waited_seconds":0.0,"leftover":0,"survivors":0}"#;
    let at = |name: &str| format!("project/cache/runs/{id}/{name}");
    arena.write(&at("spec.json"), &spec.to_string());
    arena.write(&at("exit.json"), exit);
    arena.write(&at("owner.lock"), "");
    arena.write(&at("supervisor.lock"), "");
    arena.path(&at("log"))
}

#[test]
fn a_planted_run_is_not_taken_in() {
    let arena = Arena::new();
    let root = arena.project("project");
    assert_eq!(arena.run(&root, &["build"]).code, Some(0));
    let private = arena.write("home/private.txt", PRIVATE);
    symlink(&private, plant(&arena, &root, "00evil")).unwrap();
    let ran = arena.run(&root, &["build", "--cached-only"]);
    is_nowhere(PRIVATE, &root.join("cache/objects"));
    assert!(
        !ran.stdout.contains("PRIVATE") && !ran.stderr.contains("PRIVATE"),
        "{ran:?}"
    );
    // Its id names processes to be ended: it must be the folder's own.
    fs::write(plant(&arena, &root, "01other"), PRIVATE).unwrap();
    arena.run(&root, &["build", "--cached-only"]);
    is_nowhere(PRIVATE, &root.join("cache/objects"));
}

#[test]
fn a_forged_launch_script_is_not_run() {
    let arena = Arena::new();
    let root = arena.project("project");
    assert_eq!(arena.run(&root, &["build"]).code, Some(0));
    // As another writer of a shared cache would.
    let cache = Cache::open(&root.join("cache")).unwrap();
    let evil = format!("touch {}\n", arena.path("mark").display());
    let digest = cache.put(evil.as_bytes(), Durability::Plain).unwrap();
    let mut entry = cache
        .last_of(TaskKind::Render, "render cpu/cmd/tiny/single")
        .unwrap();
    (entry.outputs[0].digest, entry.outputs[0].size) = (digest, evil.len() as u64);
    cache.record_entry(&entry).unwrap();
    drop(cache);
    let ran = arena.run(&root, &["build"]);
    assert!(!arena.path("mark").exists(), "{ran:?}");
    assert!(
        ran.code != Some(0) && ran.stderr.contains("other launch files"),
        "{ran:?}"
    );
}

/// Text that sets a terminal's title, clears it, turns the direction of reading, or is a command to
/// a CI system.
const NASTY: &str = "x\u{1b}]0;PWNED\u{7}\u{1b}[2J\u{9b}2J\u{202e}y";

#[track_caller]
fn is_harmless(what: &str, text: &str) {
    let active = |c: char| tprimat::words::plain::is_active(c) && c != '\n' && c != '\t';
    assert!(!text.chars().any(active), "{what}: {text:?}");
    for line in text.lines() {
        assert!(!line.trim_start().starts_with("::"), "{what}: {text:?}");
    }
}

#[test]
fn nothing_that_a_stranger_wrote_commands_a_terminal_or_a_ci_system() {
    let arena = Arena::new();
    let root = arena.project("project");
    let env = [("GITHUB_ACTIONS", "true")];
    let run = |command: &[&str]| {
        let ran = arena.run_with(&root, command, &env);
        is_harmless(&format!("{command:?} stdout"), &ran.stdout);
        is_harmless(&format!("{command:?} stderr"), &ran.stderr);
        ran
    };
    // Names of files and what is in them.
    let bare = NASTY.replace('/', "");
    arena.write(
        &format!("logs/{bare}.log"),
        &LOG.replace(
            "\"effective\":{}",
            &format!("\"effective\":{{{}:1}}", serde_json::json!(NASTY)),
        ),
    );
    arena.write(&format!("logs/{bare}\n::error::PWNED.zip"), "x");
    arena.write(&format!("logs/{bare}2.log"), "not a log");
    assert_eq!(run(&["import", "../logs"]).code, Some(0));
    run(&["import", &format!("../logs/{bare}2.log")]);
    run(&["parse", &format!("../logs/{bare}.log")]);
    // Values of every file of a project.
    let quoted = "\"bad\\u001b]0;PWNED\\u0007\\u202e\\n::error::PWNED\"";
    let config = fs::read_to_string(root.join("config.yaml")).unwrap();
    arena.write(
        "project/config.yaml",
        &config.replace("models:\n", &format!("models:\n  {quoted}: 1\n")),
    );
    run(&["check"]);
    run(&["config"]);
    arena.write("project/config.yaml", &config);
    arena.write("project/matrix.toml", &ONE_RUN.replace("\"one\"", quoted));
    for command in [
        &["plan"] as &[&str],
        &["check"],
        &["list"],
        &["print", "graph"],
        &["plan", "--json"],
    ] {
        run(command);
    }
    arena.write("project/matrix.toml", &ONE_RUN.replace("\"tiny\"", quoted));
    run(&["plan"]);
    arena.write("project/matrix.toml", ONE_RUN);
    arena.write(
        "project/tprimat.lock",
        &format!("version = 1\n{quoted} = 2\n"),
    );
    run(&["plan"]);
    fs::remove_file(root.join("tprimat.lock")).unwrap();
    // A trainer's last words, in the lines of a build and in what it compares.
    let trainer = fs::read_to_string(root.join("trainer.sh")).unwrap();
    let says = "printf '\\033]0;PWNED\\007\\033[2J::error::PWNED\\n::error title=PWNED::torch.OutOfMemoryError: CUDA out of memory\\n'; exit 1\n";
    arena.write("project/trainer.sh", &format!("{trainer}{says}"));
    let ran = run(&["build"]);
    assert!(
        ran.stderr.contains("| ") && ran.stderr.contains("torch.OutOfMemoryError"),
        "{ran:?}"
    );
    run(&["plan"]);
    run(&["show", "cpu/cmd/tiny/single"]);
}

#[test]
fn files_have_the_permissions_that_the_umask_gives() {
    let arena = Arena::new();
    let root = arena.project("project");
    let tprimat = arena.path("bin/tprimat");
    arena.shell(
        &root,
        &format!("umask 077; {} build", tprimat.display()),
        false,
    );
    for path in ["tprimat.lock", "output", "cache"].iter().flat_map(|name| {
        let path = root.join(name);
        if path.is_dir() {
            files_below(&path)
        } else {
            vec![path]
        }
    }) {
        assert_eq!(mode_of(&path) & 0o077, 0, "{}", path.display());
    }
    let report = arena.path("report.html");
    arena.shell(
        &root,
        &format!(
            "umask 027; {} report -o {}",
            tprimat.display(),
            report.display()
        ),
        false,
    );
    assert_eq!(mode_of(&report), 0o640);
}

#[test]
fn a_file_that_is_cut_while_it_is_mapped_ends_a_command_with_an_error() {
    let arena = Arena::new();
    let mut child = std::process::Command::new(crate::support::TPRIMAT)
        .args(["parse", "-"])
        .current_dir(arena.project("project"))
        .stdin(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // More than a pipe holds: the command has begun to read, and waits for more.
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(&[b'\n'; 1 << 18]).unwrap();
    let pid = nix::unistd::Pid::from_raw(i32::try_from(child.id()).unwrap());
    nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGBUS).unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        output.status.code() == Some(1) && said.contains("cut short while it was read"),
        "{output:?}"
    );
}

#[test]
fn a_result_file_that_would_fill_the_memory_is_refused() {
    let arena = Arena::new();
    let root = arena.project("project");
    let zeros = format!("{{\"step_times\":[{}0]}}", "0,".repeat(10 << 20));
    arena.write("project/run.json", &zeros);
    let ran = arena.run(&root, &["import", "run.json"]);
    assert!(
        ran.code == Some(2) && ran.stderr.contains("at most 16 MiB"),
        "{}",
        ran.stderr
    );
}

#[test]
fn a_line_without_an_end_is_neither_printed_nor_parsed() {
    let arena = Arena::new();
    let root = arena.project("project");
    for (name, size) in [
        ("config.yaml", 1 << 20),
        ("config.yaml", 6 << 20),
        ("matrix.toml", 1 << 20),
        ("matrix.toml", 6 << 20),
        ("tprimat.lock", 1 << 20),
        ("tprimat.lock", 6 << 20),
        ("recipes/evil/recipe.toml", 6 << 20),
    ] {
        let path = arena.path(&format!("project/{name}"));
        let kept = fs::read(&path).ok();
        arena.write(&format!("project/{name}"), &"=".repeat(size));
        let ran = arena.run(&root, &["plan"]);
        assert!(
            ran.code != Some(0) && ran.stderr.contains(name),
            "{name} of {size}: {ran:?}"
        );
        assert!(
            ran.stderr.len() < 10_000,
            "{name} of {size}: {} bytes",
            ran.stderr.len()
        );
        match kept {
            Some(kept) => fs::write(&path, kept).unwrap(),
            None => fs::remove_file(&path).unwrap(),
        }
    }
}

#[test]
fn a_template_takes_neither_all_memory_nor_hours_of_whoever_looks() {
    let arena = Arena::new();
    let root = arena.project("project");
    let recipe = "id = \"evil\"\nname = \"x\"\nvendors = [\"cpu\"]\n[launch]\ntemplates = [\"x.sh.j2\"]\n\
        command = [\"bash\", \"x.sh\"]\n[log]\nformat = \"tprimat\"\n";
    arena.write("project/recipes/evil/recipe.toml", recipe);
    let config = fs::read_to_string(root.join("config.yaml")).unwrap();
    arena.write(
        "project/config.yaml",
        &config.replace("  cmd:", "  evil: {}\n  cmd:"),
    );
    arena.write(
        "project/matrix.toml",
        &ONE_RUN.replace("\"cmd\"", "\"evil\""),
    );
    for (template, what) in [
        (
            "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x|length }}",
            "of memory",
        ),
        ("{{ range(100000)|join('x'*100000) }}", "of memory"),
        (
            "{% for a in range(99999) %}{{ ('ab'*30000)|upper|lower|title|reverse|length }}{% endfor %}",
            "of computing",
        ),
    ] {
        arena.write("project/recipes/evil/x.sh.j2", template);
        let ran = arena.run(&root, &["check"]);
        assert!(
            ran.code == Some(2) && ran.stderr.contains(what) && ran.stderr.contains("evil/x.sh.j2"),
            "{template}: {ran:?}"
        );
    }
}

/// The page names the digest of its one script, so that no other one would run in it.
#[test]
fn the_page_runs_no_script_but_its_own() {
    let arena = Arena::new();
    let root = arena.project("project");
    assert_eq!(arena.run(&root, &["build"]).code, Some(0));
    let page = files_below(&root.join("output"))
        .into_iter()
        .find(|path| path.ends_with("report.html"))
        .unwrap();
    let page = fs::read_to_string(page).unwrap();
    let script = page
        .split_once("<script>")
        .unwrap()
        .1
        .split_once("</script>")
        .unwrap()
        .0;
    let script = arena.write("script.js", script);
    let sum = std::process::Command::new("sha256sum")
        .arg(script)
        .output()
        .unwrap()
        .stdout;
    let hex = String::from_utf8(sum).unwrap();
    let bytes: Vec<u8> = (0..32)
        .map(|i| u8::from_str_radix(&hex[2 * i..2 * i + 2], 16).unwrap())
        .collect();
    let wanted = format!("script-src 'sha256-{}'", base64(&bytes));
    assert!(
        page.contains(&wanted),
        "crates/report/src/html/page.html must say {wanted}"
    );
    assert!(!page.contains("script-src 'unsafe-inline'"));
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for three in bytes.chunks(3) {
        let number = (0..3).fold(0u32, |n, i| {
            n << 8 | u32::from(three.get(i).copied().unwrap_or(0))
        });
        for i in 0..4 {
            let digit = DIGITS[(number >> (18 - 6 * i)) as usize % 64];
            text.push(if i <= three.len() {
                char::from(digit)
            } else {
                '='
            });
        }
    }
    text
}

/// What is said goes through the one place that makes it harmless.
#[test]
fn nothing_is_printed_past_the_place_that_makes_it_harmless() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let stages = [
        "cli", "execute", "import", "plan", "graph", "host", "config", "matrix", "recipe", "data",
    ];
    let crates = [
        "base", "words", "job", "samples", "logs", "figures", "report", "cache", "render",
    ];
    let stages = stages.map(|stage| root.join("src").join(stage)).into_iter();
    for folder in stages.chain(crates.map(|name| root.join("crates").join(name).join("src"))) {
        for path in files_below(&folder).into_iter().filter(|path| {
            !path.components().any(|part| part.as_os_str() == "tests")
                && !path.ends_with("tests.rs")
        }) {
            let text = fs::read_to_string(&path).unwrap();
            let code = text.split("#[cfg(test)]").next().unwrap();
            // `cli` has an `eprintln!` of its own. Annotations are commands, whose words are
            // escaped where they are made.
            let is_past = |line: &&str| {
                let line = line.trim_start();
                (line.contains("eprintln!(") && !folder.ends_with("cli")
                    || line.starts_with("println!(")
                    || line.contains("eprint!("))
                    && !line.contains("gate_annotations")
            };
            let found = code.lines().find(is_past);
            assert!(
                found.is_none(),
                "{}: {found:?}: use what cli/output.rs has",
                path.display()
            );
        }
    }
}

#[test]
fn the_document_names_tests_that_exist() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let page = fs::read_to_string(root.join("docs/SECURITY.md")).unwrap();
    let tests: String = files_below(&root.join("tests/attacks"))
        .iter()
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    // What needs a container engine or a remote cache is tested beside the other things that do.
    let elsewhere: String = ["tests/services", "tests/suite", "src/cache/remote"]
        .iter()
        .flat_map(|folder| files_below(&root.join(folder)))
        .filter(|path| path.extension() == Some("rs".as_ref()))
        .map(|path| fs::read_to_string(path).unwrap())
        .collect();
    let mut named = 0;
    for name in page.split('`').skip(1).step_by(2) {
        if name.starts_with("src/") || name.starts_with("crates/") {
            assert!(root.join(name).exists(), "{name}");
        } else if name.len() > 20 && name.bytes().all(|b| b.is_ascii_lowercase() || b == b'_') {
            let there = format!("fn {name}()");
            assert!(
                tests.contains(&there) || elsewhere.contains(&there),
                "{name}"
            );
            named += usize::from(tests.contains(&there));
        }
    }
    let all = tests.matches("#[test]\nfn ").count();
    // This one, and those that show that nothing too much is refused.
    assert!(
        named + 5 >= all,
        "the document names {named} of {all} tests"
    );
}
