//! `logs`, while a run goes on and after its end.

use crate::kept::CELL;
use crate::support::{ONE_RUN, Project, until};

#[test]
fn a_log_that_is_followed_shows_no_secret_of_the_run_and_each_line_once() {
    const SECRET: &str = "hf_5ecret0fThisRun";
    let project = Project::new(ONE_RUN);
    let held = "echo token $HF_TOKEN, key $MY_KEY\nuntil [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in";
    project.edit("trainer.sh", "for step in", held);
    project.edit(
        "config.yaml",
        "num_gpus: 1 }\n",
        "num_gpus: 1, env: { MY_KEY: \"${MY_KEY:-0ther5ecretHere}\" } }\n",
    );
    let mut build = project.tprimat(&["build"]);
    let build = build
        .env("HF_TOKEN", SECRET)
        .env("MY_KEY", "An0ther5ecretOfTheRun")
        .spawn()
        .unwrap();
    until("the trainer starts", || project.launches() == 1);
    // Somebody else's shell, which knows neither.
    let follow = project.tprimat(&["logs", "-f", CELL]).spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    project.write("go", "");
    build.wait_with_output().unwrap();
    let shown = crate::support::Ran::from(follow.wait_with_output().unwrap())
        .ends_with(0)
        .stdout;
    assert!(
        shown.contains(&format!("token {}, key ", "*".repeat(SECRET.len()))),
        "{shown}"
    );
    assert!(
        !shown.contains("ecretOfTheRun")
            && shown.matches("\"event\":\"step\",\"step\":3,").count() == 1,
        "{shown}"
    );
    assert_eq!(shown, project.run(&["logs", CELL]).ends_with(0).stdout);
    let tail = project.run(&["logs", CELL, "-n", "2"]).ends_with(0).stdout;
    assert!(
        tail.lines().count() == 2 && shown.ends_with(&tail),
        "{tail}"
    );
    let none = project
        .run(&["logs", CELL, "--tail", "0"])
        .ends_with(0)
        .stdout;
    assert_eq!(none, "");
}

#[test]
fn the_log_of_a_run_that_goes_on_is_shown_as_far_as_it_is_written() {
    let project = Project::new(ONE_RUN);
    let held = "echo token $HF_TOKEN\nuntil [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in";
    project.edit("trainer.sh", "for step in", held);
    let mut build = project.tprimat(&["build", "--detach"]);
    let build: crate::support::Ran = build
        .env("HF_TOKEN", "hf_5ecret0fThisRun")
        .output()
        .unwrap()
        .into();
    build.ends_with(0);
    until("the trainer starts", || project.launches() == 1);
    until("it has written", || {
        let shown = project.run(&["logs", CELL]).ends_with(0);
        let told = format!("{CELL}#1 goes on; `tprimat logs -f {CELL}` follows it");
        assert!(shown.stderr.contains(&told), "{shown:?}");
        assert!(!shown.stdout.contains("5ecret"), "{shown:?}");
        shown.stdout.contains("token *****")
    });
    // Where other settings are asked for, nothing of this run is shown. Stacks of this run do not exist
    // yet, and that is said instead of blaming the settings.
    let other = project
        .run(&["logs", CELL, "--set", "training.seed=7"])
        .ends_with(1);
    assert!(other.stderr.contains("other settings"), "{other:?}");
    let stacks = project.run(&["logs", CELL, "--stacks"]).ends_with(1);
    assert!(
        stacks.stderr.contains("goes on") && !stacks.stderr.contains("other settings"),
        "{stacks:?}"
    );
    project.write("go", "");
    project.run(&["status", "--wait"]).ends_with(0);
    let over = project.run(&["logs", CELL]).ends_with(0);
    assert_eq!(over.stderr, "");
}

/// A closed terminal, or the end of `logs -f | grep -m 1 …`: no write would fail, since the log is
/// quiet, and a signal need not come.
#[test]
fn following_ends_when_nobody_reads_it_any_more() {
    let project = Project::new(ONE_RUN);
    let held = "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in";
    project.edit("trainer.sh", "for step in", held);
    project.run(&["build", "--detach"]).ends_with(0);
    until("the trainer starts", || project.launches() == 1);
    for command in [&["logs", "-f", CELL][..], &["status", "--wait"]] {
        let mut follow = project.tprimat(command).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(500));
        assert_eq!(follow.try_wait().unwrap(), None, "{command:?} goes on");
        drop(follow.stdout.take());
        until("it has ended", || follow.try_wait().unwrap().is_some());
    }
    project.write("go", "");
    project.run(&["status", "--wait"]).ends_with(0);
}

#[test]
fn following_a_log_ends_when_everybody_who_wrote_it_is_dead() {
    use nix::sys::signal::{Signal, kill};
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    until("the trainer starts", || project.launches() == 1);
    // Under other settings it is not this run that goes on.
    let other = project
        .run(&["logs", "-f", CELL, "--set", "training.seed=7"])
        .ends_with(1);
    assert!(
        other.stderr.contains("as it is configured now"),
        "{other:?}"
    );
    let mut follow = project.command("timeout");
    follow.args(["20", crate::support::TPRIMAT, "logs", "-f", CELL]);
    let follow = follow.spawn().unwrap();
    let supervisor = project
        .processes()
        .into_iter()
        .find(|(_, command)| command.contains("__run"))
        .unwrap()
        .0;
    for pid in [build.id() as i32, supervisor] {
        kill(nix::unistd::Pid::from_raw(pid), Signal::SIGKILL).unwrap();
    }
    build.wait().unwrap();
    let ended = follow.wait_with_output().unwrap();
    assert_ne!(ended.status.code(), Some(124), "it never ended");
    project.write("go", "");
    project.run(&["build"]).ends_with(0);
}

#[test]
fn lines_of_a_log_that_were_lost_are_told_beside_the_figures() {
    let project = Project::new(ONE_RUN);
    // Two processes wrote into one line: the event of step 3 is lost, that of step 4 is whole.
    project.edit(
        "trainer.sh",
        "    sleep 0.005\n",
        "    [[ $step = 3 ]] && printf '%s' '{\"event\":\"step\",\"st' && continue\n",
    );
    project.run(&["build"]).ends_with(0);
    let told = "! cpu/cmd/tiny/single: repeat 1: 1 line of the log cannot be read (the first is line 4): what was there is missing";
    let shown = project.run(&["compare"]).ends_with(0).stdout;
    assert!(shown.contains(told), "{shown}");
    let log = project.run(&["logs", CELL]).ends_with(0).stdout;
    assert!(log.lines().nth(3).unwrap().contains("\"st{"), "{log}");
}

/// A trainer that prints lines of its own is told how they can be read, and reading them takes no run.
#[test]
fn a_log_in_another_format_is_told_how_it_is_named() {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let nanogpt = "echo \"iter $i: loss 3.2000, time 120.00ms, mfu 1.00%\"";
    let own = "echo \"batch $i took 0.12 s at a loss of 3.2\"";
    let looks_like = "the log looks like `nanogpt`: write `format = \"nanogpt\"` below [log]";
    let unknown = "write `format = \"regex\"` with patterns below [log]";
    let patterns = "format = \"regex\"\npatterns = ['batch (?P<step>\\d+) took (?P<step_time_s>\\S+) s at a loss of (?P<loss>\\S+)']";
    for (line, told, format) in [
        (nanogpt, looks_like, "format = \"nanogpt\""),
        (own, unknown, patterns),
    ] {
        let project = Project::new(&ONE_RUN.replace("\"cmd\"", "\"mine\""));
        project.write(
            "recipes/mine/recipe.toml",
            "id = \"mine\"\nname = \"mine\"\nvendors = [\"cpu\"]\n\n[launch]\ntemplates = []\ncommand = [\"bash\", \"-c\", \". $TPRIMAT_RECIPE_DIR/trainer.sh\"]\n\
             reads_job = true\n\n[log]\nformat = \"tprimat\"\n",
        );
        let launched = "echo up >> \"$TPRIMAT_PROJECT_DIR/launches\"";
        let script = format!("{launched}\nfor i in 1 2 3 4 5 6; do {line}; done\n");
        project.write("recipes/mine/trainer.sh", &script);
        let said = words(&project.run(&["build"]).ends_with(1).stderr);
        let place = "in recipes/mine/recipe.toml";
        for part in ["the recipe `mine` reads its log as `tprimat`", told, place] {
            assert!(said.contains(part), "{part}: {said}");
        }
        project.edit("recipes/mine/recipe.toml", "format = \"tprimat\"", format);
        let built = project.run(&["build"]);
        let shown = project.run(&["show", "cpu/mine/tiny/single", "--json"]);
        let shown = shown.ends_with(0).json();
        assert_eq!(
            shown["repeats"][0]["steady"]["steps"], 5,
            "{built:?}: {shown}"
        );
        assert_eq!(project.launches(), 1);
    }
}
