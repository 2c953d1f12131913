//! docker and podman, with an image made of a few programs of this host.

use std::{
    fs,
    io::Write,
    os::unix::fs::MetadataExt,
    process::{Command, Stdio},
};

use nix::{
    sys::signal::{Signal, kill},
    unistd::Pid,
};

use crate::{
    eventually,
    fixtures::docker::packed_image,
    support::{ONE_RUN, Project, Ran},
    tool,
};

/// podman asks for limits above those of an unprivileged tester, and its default runtime for one
/// kind of cgroups.
const PODMAN_CONF: &str = "[containers]\ndefault_ulimits = [\"nofile=1024:4096\", \"nproc=4096:4096\"]\n\
                           [engine]\nruntime = \"runc\"\ncgroup_manager = \"cgroupfs\"\n";

/// An engine with an image of its own, which goes with it.
struct Engine {
    name: &'static str,
    image: String,
    project: Project,
}

impl Engine {
    fn new(name: &'static str, trainer: &str) -> Self {
        let package = if name == "docker" {
            "docker.io"
        } else {
            "podman crun runc catatonit"
        };
        let project = Project::new(ONE_RUN);
        project.write("trainer.sh", trainer);
        let image = format!(
            "{}:1",
            project
                .folder()
                .file_name()
                .unwrap()
                .to_string_lossy()
                .to_lowercase()
        );
        let image = if name == "podman" {
            format!("localhost/{image}")
        } else {
            image
        };
        let engine = Self {
            name,
            image,
            project,
        };
        fs::write(engine.project.folder().join("containers.conf"), PODMAN_CONF).unwrap();
        let packed = packed_image(engine.project.folder(), &engine.image);
        tool(name, &["--version"], package);
        let made = engine.ask(&["import", &packed, &engine.image]);
        engine.config("");
        assert!(
            made.0,
            "{name} must run, and this user must be allowed to use it: {}",
            made.1
        );
        engine
    }

    /// `more`: further keys of `execution.cpu.container`, each followed by a comma.
    fn config(&self, more: &str) {
        let (name, image) = (self.name, &self.image);
        let text = format!(
            "{}execution:\n  cpu: {{ executor: container, container: {{ {more} engine: {name}, image: '{image}' }} }}\n",
            crate::support::CONFIG
        );
        self.project.write("config.yaml", &text);
    }

    fn ask(&self, arguments: &[&str]) -> (bool, String) {
        let mut command = Command::new(self.name);
        command.env(
            "CONTAINERS_CONF",
            self.project.folder().join("containers.conf"),
        );
        let said = command.args(arguments).output().unwrap();
        (
            said.status.success(),
            String::from_utf8_lossy(&[said.stdout, said.stderr].concat()).into_owned(),
        )
    }

    fn tprimat(&self, arguments: &[&str]) -> Command {
        let mut command = self.project.tprimat(arguments);
        command.env(
            "CONTAINERS_CONF",
            self.project.folder().join("containers.conf"),
        );
        command.env("HF_TOKEN", "hf_not_for_anybody_else");
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        self.tprimat(arguments).output().unwrap().into()
    }

    /// Names of the containers that have this test's project, ended ones as well.
    fn containers(&self) -> Vec<String> {
        let filter = format!("volume={}", self.project.root().display());
        let (ok, names) = self.ask(&["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"]);
        assert!(ok, "{names}");
        names.lines().map(str::to_owned).collect()
    }

    /// A build that is killed, interrupted or left to its timeout while its trainer waits for ever.
    fn started(&self) -> std::process::Child {
        let build = self
            .tprimat(&["build"])
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        eventually("the trainer runs in its container", 30, || {
            self.project.path("up").exists()
        });
        build
    }

    fn supervisor(&self) -> Pid {
        let is_supervisor = |(_, line): &&(i32, String)| line.contains("__run");
        let processes = self.project.processes();
        Pid::from_raw(
            processes
                .iter()
                .find(is_supervisor)
                .expect("a supervisor")
                .0,
        )
    }

    fn is_clear(&self) -> bool {
        self.containers().is_empty() && self.project.processes().is_empty()
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        for name in self.containers() {
            self.ask(&["rm", "--force", &name]);
        }
        self.ask(&["rmi", "--force", &self.image]);
    }
}

/// Says where it runs, and what it can see of its container.
fn trainer() -> String {
    let inside = "cat /etc/inside > \"$TPRIMAT_PROJECT_DIR/inside\"\necho \"token: $HF_TOKEN\"\n";
    format!("{inside}{}", crate::support::TRAINER)
}

/// Waits for ever, and notes each SIGTERM.
const WAITS: &str = "trap 'echo asked >> \"$TPRIMAT_PROJECT_DIR/asked\"; exit 1' TERM\n\
                     echo up > \"$TPRIMAT_PROJECT_DIR/up\"\nwhile :; do sleep 0.05; done\n";

fn a_build_runs_inside_and_leaves_nothing(name: &'static str) {
    let engine = Engine::new(name, &trainer());
    let project = &engine.project;
    engine.run(&["build"]).ends_with(0);
    assert_eq!(
        project.read("inside").trim(),
        engine.image,
        "it ran in the image"
    );
    assert_eq!(project.launches(), 1);
    let owner = fs::metadata(project.path("inside")).unwrap().uid();
    assert_eq!(
        owner,
        nix::unistd::geteuid().as_raw(),
        "its files are the caller's"
    );
    assert!(
        project.read("tprimat.lock").contains("sha256:"),
        "{}",
        project.read("tprimat.lock")
    );
    let log = engine
        .run(&["logs", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    assert!(
        log.contains("token: ****") && !log.contains("hf_not"),
        "the token reached it, and is masked: {log}"
    );
    assert!(engine.is_clear(), "{:?}", engine.containers());
    let again = engine.run(&["build"]).ends_with(0);
    assert!(again.stderr.contains("nothing to do"), "{}", again.stderr);
    let local = engine
        .run(&["plan", "--executor", "local"])
        .ends_with(0)
        .stdout;
    assert!(
        local.contains("stale"),
        "another environment is another measurement: {local}"
    );
    let why = engine
        .run(&[
            "show",
            "--stale",
            "cpu/cmd/tiny/single",
            "--executor",
            "local",
        ])
        .ends_with(0)
        .stdout;
    assert!(why.contains("image"), "{why}");
}

#[test]
fn docker_runs_a_build_and_leaves_nothing() {
    a_build_runs_inside_and_leaves_nothing("docker");
}

#[test]
fn podman_runs_a_build_and_leaves_nothing() {
    a_build_runs_inside_and_leaves_nothing("podman");
}

#[test]
fn the_token_is_in_no_inspection_list_of_processes_or_file_while_it_runs() {
    let engine = Engine::new("docker", WAITS);
    let mut build = engine.started();
    let (_, inspected) = engine.ask(&["inspect", &engine.containers()[0]]);
    assert!(
        inspected.contains("TPRIMAT_RUN_ID") && !inspected.contains("hf_not"),
        "{inspected}"
    );
    let lines: String = engine
        .project
        .processes()
        .into_iter()
        .map(|(_, line)| line)
        .collect();
    assert!(!lines.contains("hf_not"), "{lines}");
    for file in crate::support::files_below(&engine.project.path("cache")) {
        let bytes = fs::read(&file).unwrap_or_default();
        assert!(
            !bytes.windows(6).any(|part| part == b"hf_not"),
            "{}",
            file.display()
        );
    }
    kill(Pid::from_raw(build.id().cast_signed()), Signal::SIGINT).unwrap();
    build.wait().unwrap();
}

#[test]
fn an_exit_code_and_a_lack_of_memory_come_through() {
    let engine = Engine::new("docker", "echo working\nexit 3\n");
    let failed = engine.run(&["build"]).ends_with(1);
    assert!(failed.stderr.contains("exit 3"), "{}", failed.stderr);
    engine
        .project
        .write("trainer.sh", "echo working\ntail /dev/zero\n");
    engine.config("options: [--memory=16m],");
    let killed = engine.run(&["build"]).ends_with(1);
    assert!(
        killed.stderr.contains("lack of host memory"),
        "{}",
        killed.stderr
    );
    assert!(engine.is_clear(), "{:?}", engine.containers());
}

/// The container is gone without the help of a later build, however the run ends.
fn nothing_is_left_when(name: &'static str, end: impl Fn(&Engine, &std::process::Child)) -> Engine {
    let engine = Engine::new(name, WAITS);
    let mut build = engine.started();
    assert_eq!(engine.containers().len(), 1);
    end(&engine, &build);
    build.wait().unwrap();
    eventually("the container and all processes are gone", 30, || {
        engine.is_clear()
    });
    engine
}

fn of(build: &std::process::Child) -> Pid {
    Pid::from_raw(build.id().cast_signed())
}

#[test]
fn an_interrupt_asks_the_trainer_once_and_removes_the_container() {
    let engine = nothing_is_left_when("docker", |_, build| {
        kill(of(build), Signal::SIGINT).unwrap()
    });
    assert_eq!(engine.project.read("asked"), "asked\n");
}

#[test]
fn podman_leaves_nothing_after_an_interrupt() {
    nothing_is_left_when("podman", |_, build| {
        kill(of(build), Signal::SIGINT).unwrap()
    });
}

#[test]
fn a_killed_tprimat_leaves_nothing() {
    nothing_is_left_when("docker", |_, build| {
        kill(of(build), Signal::SIGKILL).unwrap()
    });
}

#[test]
fn a_killed_supervisor_leaves_nothing() {
    nothing_is_left_when("docker", |engine, _| {
        kill(engine.supervisor(), Signal::SIGKILL).unwrap()
    });
}

#[test]
fn a_timeout_ends_the_container() {
    let engine = Engine::new("docker", WAITS);
    engine.project.edit(
        "config.yaml",
        "inputs: [trainer.sh] }",
        "inputs: [trainer.sh], timeout: 1s }",
    );
    let ran = engine.run(&["build"]).ends_with(1);
    assert!(ran.stderr.contains("timeout"), "{}", ran.stderr);
    assert!(engine.is_clear(), "{:?}", engine.containers());
}

#[test]
fn what_is_left_when_all_are_killed_at_once_is_removed_by_the_next_build() {
    for name in ["docker", "podman"] {
        let engine = Engine::new(name, WAITS);
        let mut build = engine.started();
        // Everybody who could tidy up is killed at once, as far as signals can be at once.
        let outside: Vec<i32> = engine
            .project
            .processes()
            .into_iter()
            .filter(|(_, line)| line.contains("tprimat"))
            .map(|(pid, _)| pid)
            .collect();
        for pid in &outside {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGSTOP);
        }
        for pid in &outside {
            let _ = kill(Pid::from_raw(*pid), Signal::SIGKILL);
        }
        build.wait().unwrap();
        assert_eq!(engine.containers().len(), 1, "nobody is left to remove it");
        engine.project.write("trainer.sh", &trainer());
        engine.run(&["build"]).ends_with(0);
        assert!(engine.is_clear(), "{:?}", engine.containers());
    }
}

#[test]
fn an_image_that_is_not_here_is_told_before_anything_runs() {
    let engine = Engine::new("docker", &trainer());
    engine
        .project
        .edit("config.yaml", &engine.image, "no/such:image");
    let ran = engine.run(&["build"]);
    assert_ne!(ran.code, Some(0));
    let said = ran.stderr.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        said.contains("there is no image no/such:image on this host"),
        "{said}"
    );
    assert_eq!(engine.project.launches(), 0);
    assert!(engine.is_clear());
}

#[test]
fn a_run_that_writes_much_before_anybody_reads_is_kept_whole() {
    let engine = Engine::new(
        "docker",
        &format!(
            "{}\nfor i in {{1..2000}}; do echo \"line $i\"; done\n",
            trainer()
        ),
    );
    engine.run(&["build"]).ends_with(0);
    let log = engine
        .run(&["logs", "cpu/cmd/tiny/single"])
        .ends_with(0)
        .stdout;
    assert!(log.contains("line 2000\n"), "{log}");
    std::io::stdout().flush().unwrap();
}

/// Names of the containers of an image, ended ones as well.
fn of_image(engine: &Engine, image: &str) -> Vec<String> {
    let filter = format!("ancestor={image}");
    let (ok, names) = engine.ask(&["ps", "--all", "--filter", &filter, "--format", "{{.Names}}"]);
    assert!(ok, "{names}");
    names.lines().map(str::to_owned).collect()
}

/// An image that goes with the test.
struct Image<'a>(&'a Engine, String);

impl Drop for Image<'_> {
    fn drop(&mut self) {
        for name in of_image(self.0, &self.1) {
            self.0.ask(&["rm", "--force", &name]);
        }
        self.0.ask(&["rmi", "--force", &self.1]);
    }
}

/// What people do on a day: make an image, start a build in it, follow its log, close
/// the terminal, come back, and read the report.
#[test]
fn an_image_is_built_and_a_detached_build_in_it_is_followed_left_and_reported() {
    const CELL: &str = "cpu/cmd/tiny/single";
    let waits = "echo up > \"$TPRIMAT_PROJECT_DIR/up\"\necho working in \"$(cat /etc/inside)\"\n\
                 until [ -e \"$TPRIMAT_PROJECT_DIR/go\" ]; do sleep 0.05; done\n";
    let engine = Engine::new("docker", &format!("{waits}{}", trainer()));
    let project = &engine.project;
    let built = Image(&engine, engine.image.replace(":1", ":built"));
    project.edit("config.yaml", &engine.image, &built.1);
    let absent = engine.run(&["container", "list"]).ends_with(0).stdout;
    let row = |text: &str| {
        let line = text.lines().find(|line| line.contains(&built.1));
        line.unwrap_or_else(|| panic!("{text}")).to_owned()
    };
    assert!(row(&absent).contains("not on this host"), "{absent}");
    let base = [
        "container",
        "build",
        "cpu/cmd",
        "--base",
        &engine.image,
        "--tag",
        &built.1,
    ];
    let made = engine.run(&base).ends_with(0).stderr;
    let next = format!(
        "built {} with docker; `tprimat build --only cpu/cmd` runs in it",
        built.1
    );
    assert!(made.contains(&next), "{made}");
    let listed = engine.run(&["container", "list"]).ends_with(0).stdout;
    assert!(row(&listed).contains("sha256:"), "{listed}");

    // The shell has the user, the home and the project of a run.
    let touch = "touch made && touch \"$HOME/of-shell\" && cat /etc/inside";
    let touch = touch.replace("touch", ": >");
    let shell = [
        "container",
        "shell",
        "cpu",
        "--framework",
        "cmd",
        "--",
        "bash",
        "-c",
        &touch,
    ];
    let inside = engine.run(&shell).ends_with(0).stdout;
    assert_eq!(
        inside.trim(),
        engine.image,
        "it is made from the base image"
    );
    for made in ["made", "cache/container-home/of-shell"] {
        let owner = fs::metadata(project.path(made)).unwrap().uid();
        assert_eq!(owner, nix::unistd::geteuid().as_raw(), "{made}");
    }

    // A terminal, in which the log is followed until the terminal is closed.
    let tprimat = crate::support::TPRIMAT;
    let typed = format!(
        "{tprimat} build --detach && until [ -e up ]; do sleep 0.05; done; exec {tprimat} logs {CELL} -f"
    );
    let screen = project.folder().join("screen");
    let mut terminal = project
        .command("script")
        .args(["--quiet", "--flush", "--return", "--command", &typed])
        .arg(&screen)
        .env("SHELL", "/bin/bash")
        .spawn()
        .expect("script; `apt-get install -y bsdutils` installs it");
    let shown = || fs::read_to_string(&screen).unwrap_or_default();
    let working = format!("working in {}", engine.image);
    eventually("the log is followed", 60, || shown().contains(&working));
    terminal.kill().unwrap();
    terminal.wait().unwrap();
    eventually("what ran in the terminal is gone", 30, || {
        let follows = |(_, line): &(i32, String)| line.contains(" logs ");
        !project.processes().iter().any(follows)
    });
    let now = engine.run(&["status"]).ends_with(0).stdout;
    assert!(now.contains("running for") && now.contains(CELL), "{now}");
    assert_eq!(engine.containers().len(), 1, "it goes on in its container");
    project.write("go", "");
    let waited = engine.run(&["status", "--wait"]).ends_with(0).stdout;
    assert!(waited.contains("tasks done"), "{waited}");
    let builds = engine.run(&["status", "--json"]).ends_with(0).json();
    let build = &builds["builds"][0];
    assert_eq!(
        (&build["state"], &build["exit_code"]),
        (&"ended".into(), &0.into())
    );
    assert_eq!(project.launches(), 1);
    let log = engine.run(&["logs", CELL]).ends_with(0).stdout;
    assert!(log.contains(&working), "{log}");
    engine.run(&["report"]).ends_with(0);
    let page = project.read("output/report.html");
    assert!(page.contains(CELL), "the page has the cell");
    let again = engine.run(&["build"]).ends_with(0).stderr;
    assert!(again.contains("every run was in the cache"), "{again}");
    assert!(engine.is_clear(), "{:?}", engine.containers());
}
