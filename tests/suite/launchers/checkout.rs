//! A recipe that needs a checkout: said when it is missing, pinned when it is there, and no
//! surprise when it changes.

use crate::support::{ONE_RUN, Project, Ran, TRAINER};

const RECIPE: &str = r#"id = "mine"
name = "a trainer in somebody else's repository"
vendors = ["cpu"]
[launch]
templates = ["mine.sh.j2"]
command = ["bash", "mine.sh"]
reads_job = true
[[require.checkouts]]
variable = "MINE_PATH"
setting = "paths.primus"
file = "train.sh"
help = "git clone https://example.org/mine.git"
[log]
format = "tprimat"
"#;

fn project() -> Project {
    let project = Project::new(&ONE_RUN.replace("cmd", "mine"));
    project.write("recipes/mine/recipe.toml", RECIPE);
    project.write(
        "recipes/mine/mine.sh.j2",
        "exec bash \"$MINE_PATH/train.sh\"\n",
    );
    project
}

fn with_checkout(project: &Project, path: &str, arguments: &[&str]) -> Ran {
    project
        .tprimat(arguments)
        .env("PRIMUS_PATH", path)
        .output()
        .unwrap()
        .into()
}

fn git(project: &Project, arguments: &[&str]) {
    let identity = ["-C", "mine", "-c", "user.name=t", "-c", "user.email=t@t"];
    let output = project
        .command("git")
        .args(identity)
        .args(arguments)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
}

#[test]
fn a_missing_checkout_is_said_with_how_to_get_it() {
    let project = project();
    let says = |ran: Ran, what: &str| {
        let ran = ran.ends_with(1);
        let said = ran
            .stderr
            .split_whitespace()
            .filter(|w| *w != "│")
            .collect::<Vec<_>>()
            .join(" ");
        assert!(said.contains(what), "{}", ran.stderr);
        assert!(
            said.contains("git clone https://example.org/mine.git"),
            "{}",
            ran.stderr
        );
    };
    says(
        project.run(&["build"]),
        "neither $MINE_PATH nor paths.primus in config.yaml says where it is",
    );
    says(
        with_checkout(&project, "nowhere", &["build"]),
        "(paths.primus, $MINE_PATH), which is not there",
    );
    project.write("mine/other.sh", "");
    says(
        with_checkout(&project, "mine", &["build"]),
        "there is no train.sh in it",
    );
    assert!(
        !project.path("tprimat.lock").exists(),
        "nothing is pinned of what is not there"
    );
}

#[test]
fn its_commit_and_changes_are_pinned_and_a_host_without_it_takes_them() {
    let project = project();
    project.write("mine/train.sh", TRAINER);
    git(&project, &["init", "-q"]);
    git(&project, &["add", "."]);
    git(&project, &["commit", "-qm", "one"]);
    with_checkout(&project, "mine", &["build"]).ends_with(0);
    assert_eq!(project.launches(), 1);
    let lock = project.read("tprimat.lock");
    let pinned = lock
        .split("[platform.cpu.recipe.mine.checkouts.MINE_PATH]")
        .nth(1)
        .expect("a section of its own");
    assert!(
        pinned.trim().starts_with("commit = \"") && !pinned.contains("dirty"),
        "{lock}"
    );

    // Another place is no change, and a host without it plans from what is pinned.
    project.run(&["plan", "--exit-code"]).ends_with(0);
    project
        .command("cp")
        .args(["-r", "mine", "elsewhere"])
        .status()
        .unwrap();
    with_checkout(&project, "elsewhere", &["plan", "--exit-code"]).ends_with(0);

    project.edit("mine/train.sh", "sleep 0.005", "sleep 0.006");
    project.run(&["plan", "--exit-code"]).ends_with(0);
    // Nothing is stale by what is pinned; what is measured anew must be what is pinned.
    let ran = with_checkout(&project, "mine", &["build", "--force=measured"]).ends_with(2);
    assert!(
        ran.stderr.contains("recipe.mine.checkouts.MINE_PATH.dirty"),
        "{}",
        ran.stderr
    );
    with_checkout(&project, "mine", &["lock", "--update"]).ends_with(0);
    let ran = project
        .run(&["show", "--stale", "cpu/mine/tiny/single"])
        .ends_with(0);
    assert!(ran.stdout.contains("MINE_PATH dirty"), "{}", ran.stdout);
    with_checkout(&project, "mine", &["build"]).ends_with(0);
    assert_eq!(project.launches(), 2);
}

#[test]
fn a_copy_without_history_is_known_by_its_file_and_that_is_said() {
    let project = project();
    project.write("mine/train.sh", TRAINER);
    let ran = with_checkout(&project, "mine", &["build"]).ends_with(0);
    assert!(
        ran.stderr.contains("MINE_PATH is not a git repository"),
        "{}",
        ran.stderr
    );
    assert!(project.read("tprimat.lock").contains("content = \""));
}
