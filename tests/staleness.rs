//! Change one thing, and exactly the right tasks run.
mod common;
#[path = "common/oracle.rs"]
mod oracle;
#[path = "common/world.rs"]
mod world;

use std::collections::{BTreeMap, BTreeSet};

use common::{IMPORT_ERROR, LARGE, Project, SMALL, UNKNOWN_ERROR, WRONG_LENGTH};
use oracle::Oracle;
use serde_json::json;
use tprimat::{
    cache::TaskKind,
    execute::{self, BuildOptions, Reporters, Talk, TrainHost, derived},
    graph::{CodeDigests, Dag, Engine, Options, State, label},
    plan::{Plan, PlanRequest},
};
use world::World;

/// All that comes after the summaries.
const LATER: &str = "{compare,plot,report} m";
/// Everything of the cells of a model.
const ALL_OF_SMALL: &str = "* cpu/cmd/small/*";
const ALL_OF_LARGE: &str = "* cpu/cmd/large/*";

#[test]
fn everything_runs_once() {
    let project = Project::new();
    project.expect(&["*"], &["*"]);
    assert_eq!(project.launches(), 4);
}

#[test]
fn a_price_is_read_by_compare_and_later() {
    let project = Project::built();
    project.edit("config.yaml", "per_gpu_hour: 1.00", "per_gpu_hour: 2.50");
    project.expect(&[LATER], &[LATER]);
    assert_eq!(project.launches(), 4);
    let published = std::fs::read_to_string(project.path("output/compare.json")).unwrap();
    assert!(published.contains("at 2.5 EUR a GPU-hour (made up)"), "{published}");
    // A price that nothing is measured at: the comparison turns out the same, so neither picture nor report is made again.
    project.edit("config.yaml", "cloud_costs:\n", "cloud_costs:\n      amd: { per_gpu_hour: 2.00 }\n");
    project.expect(&[LATER], &["compare m"]);
}

#[test]
fn a_target_loss_is_read_by_compare_and_later() {
    let project = Project::built();
    project.write("config.yaml", &(project.read("config.yaml") + "\ncomparison: { target_loss: { small: 3.5 } }\n"));
    project.expect(&[LATER], &[LATER]);
    assert_eq!(project.launches(), 4);
}

#[test]
fn a_description_a_comment_blank_lines_and_key_order_are_read_by_nobody() {
    let project = Project::built();
    project.edit("config.yaml", "the first words", "other words");
    project.expect_nothing();
    project.edit("config.yaml", "training:\n", "# how\n\n\ntraining: # and how much\n");
    project.expect_nothing();
    project.edit(
        "config.yaml",
        "micro_batch_size: 1, global_batch_size: 1",
        "global_batch_size: 1, micro_batch_size: 1",
    );
    let text = project.read("config.yaml");
    let (first, rest) = text.split_once("\n\n").unwrap();
    project.write("config.yaml", &format!("{rest}\n{first}\n"));
    project.expect_nothing();
    project.edit("matrix.toml", "repeats = 2", "# twice\nrepeats     = 2");
    project.expect_nothing();
    let own = "full_name: mine, description: my own, timeout: 2h, command:";
    project.edit("config.yaml", "cooldown_seconds: 0", "cooldown_seconds: 0.5").edit("config.yaml", "command:", own);
    project.expect_nothing();
}

#[test]
fn a_sequence_length_is_read_by_the_cells_that_do_not_override_it() {
    let project = Project::new();
    let matrix = project.read("matrix.toml");
    let own = "\n[[override]]\nwhere = { model = \"small\" }\nset = { \"training.data.seq_length\" = 32 }\n";
    project.write("matrix.toml", &(matrix + own));
    assert_eq!(project.build(&[]).code, 0);
    project.edit("config.yaml", "seq_length: 64", "seq_length: 128");
    let reason = project.plan(&[])[&format!("train {LARGE}#1")].reason.clone();
    assert!(reason.contains("data.seq_length") && reason.contains("64") && reason.contains("128"), "{reason}");
    project.expect(&[ALL_OF_LARGE, LATER], &[ALL_OF_LARGE, LATER]);
    project.edit("matrix.toml", "seq_length\" = 32", "seq_length\" = 16");
    project.expect(&[ALL_OF_SMALL, LATER], &[ALL_OF_SMALL, LATER]);
}

#[test]
fn a_model_is_read_by_its_cells() {
    let project = Project::built();
    project.edit("config.yaml", "vocab_size: 64", "vocab_size: 96");
    project.expect(&[ALL_OF_LARGE, LATER], &[ALL_OF_LARGE, LATER]);
}

#[test]
fn an_environment_and_a_declared_file_are_read_by_trainings() {
    let project = Project::built();
    let rest = "{train,parse,aggregate} *";
    for (file, old, new) in [
        ("config.yaml", "OF_PLATFORM: \"0\"", "OF_PLATFORM: \"1\""),
        ("config.yaml", "OF_FRAMEWORK: \"0\"", "OF_FRAMEWORK: \"1\""),
        ("train.sh", "set -o noclobber", "set -o noclobber # as said"),
        ("recipes/cmd/helper.sh", "helps", "helps a lot"),
    ] {
        project.edit(file, old, new);
        project.expect(&[rest, LATER], &[rest, LATER]);
    }
    // A file that is new in the recipe folder.
    project.write("recipes/cmd/more/library.sh", "# more\n");
    project.expect(&[rest, LATER], &[rest, LATER]);
    project.remove("recipes/cmd/more/library.sh");
    // As it was before: those measurements count again, and what they came to is published again.
    project.expect(&["report m"], &["report m"]);
}

#[test]
fn template_white_space_that_renders_the_same_ends_at_render() {
    let project = Project::built();
    project.edit("templates/cmd.sh.j2", "{% else %}", "{%  else  %}");
    // The plan renders in memory, so it knows already.
    project.expect(&["render *"], &["render *"]);
    project.edit("templates/cmd.sh.j2", "{%  else  %}", "{# a remark #}{% else %}");
    project.expect(&["render *"], &["render *"]);
    project.edit("templates/cmd.sh.j2", "set -euo pipefail", "set -euo pipefail # as always");
    project.expect(&["*"], &["*"]);
}

#[test]
fn a_recipe_without_what_it_launches_is_read_by_nobody() {
    let project = Project::built();
    project.edit("recipes/cmd/recipe.toml", "timeout = \"6h\"", "timeout = \"7h\" # longer");
    project.expect_nothing();
    project.edit("recipes/cmd/recipe.toml", "name = \"a command of your own\"", "name = \"anything\"");
    project.expect_nothing();
    // A copy of what is built in, taken away again.
    project.remove("recipes/cmd/helper.sh").remove("recipes/cmd/recipe.toml");
    assert!(project.build(&[]).code == 0);
    project.write("recipes/cmd/recipe.toml", common::RECIPE).remove("templates/cmd.sh.j2");
    project.expect_nothing();
}

#[test]
fn more_repeats_are_more_runs_and_fewer_are_none() {
    let project = Project::built();
    project.edit("matrix.toml", "repeats = 2", "repeats = 3");
    let more = ["{train,parse} *#3", "aggregate *", LATER];
    project.expect(&more, &more);
    project.edit("matrix.toml", "repeats = 3", "repeats = 2");
    project.expect(&["report m"], &["report m"]);
}

#[test]
fn repeats_may_be_asked_for_on_the_command_line() {
    let project = Project::built();
    let built = project.build(&["--repeats", "3"]);
    assert_eq!((built.code, project.launches()), (0, 6));
    let trained: Vec<_> = built.ran.iter().filter(|id| id.starts_with("train ")).cloned().collect();
    assert_eq!(trained, [format!("train {LARGE}#3"), format!("train {SMALL}#3")]);
    assert_eq!(project.stale(&["--repeats", "3"]), BTreeSet::new());
}

#[test]
fn cells_may_come_go_and_change_places() {
    let project = Project::built();
    project.edit("matrix.toml", "[\"small\", \"large\"]", "[\"large\", \"small\"]");
    project.expect(&[LATER], &[LATER]);
    project.edit("matrix.toml", "[\"large\", \"small\"]", "[\"large\"]");
    project.expect(&[LATER], &[LATER]);
    project.edit("matrix.toml", "[\"large\"]", "[\"small\", \"large\"]");
    project.expect(&["report m"], &["report m"]);
    assert_eq!(project.launches(), 4);
}

#[test]
fn a_touch_is_no_change() {
    let project = Project::built();
    for name in
        ["config.yaml", "matrix.toml", "train.sh", "templates/cmd.sh.j2", "recipes/cmd/recipe.toml", "tprimat.lock"]
    {
        project.touch(name);
    }
    project.touch("recipes/cmd/helper.sh").touch("output/compare.png").touch("output/compare.txt");
    project.expect_nothing();
}

#[test]
fn the_checkout_may_be_copied() {
    let mut project = Project::built();
    project.move_to_copy();
    project.expect_nothing();
}

#[test]
fn an_edit_undone_is_no_edit() {
    let project = Project::built();
    project.edit("config.yaml", "seq_length: 64", "seq_length: 128");
    assert_ne!(project.stale(&[]), BTreeSet::new());
    project.edit("config.yaml", "seq_length: 128", "seq_length: 64");
    project.expect_nothing();
    // Undone after a build: what was measured counts again.
    project.edit("config.yaml", "seq_length: 64", "seq_length: 128").build(&[]);
    project.edit("config.yaml", "seq_length: 128", "seq_length: 64");
    project.expect(&["report m"], &["report m"]);
}

#[test]
fn warm_up_is_read_by_aggregate_and_later() {
    let project = Project::built();
    project.edit("config.yaml", "skip_steps: 1", "skip_steps: 2");
    project.expect(&["aggregate *", LATER], &["aggregate *", LATER]);
}

/// A project through the library, where the digests of tprimat's own sources may be others.
fn with_engine<T>(project: &Project, code: CodeDigests, look: impl FnOnce(&Engine) -> T) -> T {
    let plan = Plan::load(&PlanRequest { root: project.root().to_owned(), ..PlanRequest::default() }).unwrap();
    let (dag, cache) = (Dag::new(&plan).unwrap(), project.cache());
    look(&Engine {
        plan: &plan,
        dag: &dag,
        cache: &cache,
        code,
        options: Options::default(),
        compare_settings: json!(derived::Settings::of(&plan).compare),
    })
}

fn stale_with(project: &Project, code: CodeDigests) -> BTreeSet<String> {
    with_engine(project, code, |engine| {
        let statuses = engine.evaluate_all().unwrap();
        let is_stale = |n: &petgraph::graph::NodeIndex| statuses.get(*n).state == State::Stale;
        engine.dag.graph.node_indices().filter(is_stale).map(|n| label(engine.plan, &engine.dag.task(n))).collect()
    })
}

#[test]
fn the_source_of_a_stage_is_read_by_it_and_later() {
    let project = Project::built();
    let now = CodeDigests::default;
    let kinds = |code: CodeDigests| -> String {
        let kinds: BTreeSet<String> =
            stale_with(&project, code).iter().map(|id| id.split(' ').next().unwrap().to_owned()).collect();
        kinds.into_iter().collect::<Vec<_>>().join(" ")
    };
    assert_eq!(kinds(now()), "");
    assert_eq!(kinds(CodeDigests { parse: "other".into(), ..now() }), "aggregate compare parse plot report");
    assert_eq!(kinds(CodeDigests { aggregate: "other".into(), ..now() }), "aggregate compare plot report");
    assert_eq!(kinds(CodeDigests { compare: "other".into(), ..now() }), "compare plot report");
    assert_eq!(kinds(CodeDigests { plot: "other".into(), ..now() }), "plot report");
    assert_eq!(kinds(CodeDigests { report: "other".into(), ..now() }), "report");
}

#[test]
fn another_parser_reads_the_logs_again_and_trains_nothing() {
    let project = Project::built();
    let code = || CodeDigests { parse: "other".into(), ..CodeDigests::default() };
    assert_eq!(stale_with(&project, code()).len(), 4 + 2 + 3);
    let summary = with_engine(&project, code(), |engine| {
        let host = TrainHost {
            project: project.root().to_owned(),
            runs: project.path("cache/runs"),
            lock_dir: project.path("locks"),
            tprimat: env!("CARGO_BIN_EXE_tprimat").into(),
            native: None,
            python: "python3".into(),
            hostname: String::new(),
            caller_env: BTreeMap::new(),
            grace_seconds: 1.0,
            gpus: Vec::new(),
        };
        let (options, talk) = (BuildOptions { jobs: 2, fail_fast: false }, Talk::new(Reporters::default()));
        let interrupts = execute::install_interrupt_handler().unwrap();
        let mut statuses = engine.evaluate_all().unwrap();
        execute::build(engine, &mut statuses, &options, &host, interrupts, &talk).unwrap()
    });
    // It reads the same in them, so nothing after it runs.
    assert_eq!((summary.ran, project.launches()), (4, 4));
    assert_eq!(stale_with(&project, code()), BTreeSet::new());
    // The results of the first parser are there as well.
    project.expect_nothing();
}

#[test]
fn a_lost_log_is_measured_again_when_another_parser_needs_it() {
    let project = Project::built();
    project.lose_log(&format!("{SMALL}#1"));
    project.expect_nothing();
    let stale = stale_with(&project, CodeDigests { parse: "other".into(), ..CodeDigests::default() });
    let trains: Vec<_> = stale.into_iter().filter(|id| id.starts_with("train ")).collect();
    assert_eq!(trains, [format!("train {SMALL}#1")]);
}

#[test]
fn what_is_lost_and_needed_is_made_again() {
    let project = Project::built();
    let (first, aggregate) = (format!("{SMALL}#1"), format!("aggregate {SMALL}"));
    let parse = format!("parse {first}");
    // The log alone: its result is there.
    project.lose_log(&first);
    project.expect_nothing();
    // The summary alone.
    project.lose_summary(SMALL);
    project.expect(&[&aggregate, LATER], &[&aggregate]);
    // A result whose log is there.
    project.lose_result(&format!("{SMALL}#2"));
    let second = format!("parse {SMALL}#2");
    project.expect(&[&second, &aggregate, LATER], &[&second]);
    // The result whose log is lost, and the summary made of it: now it must be measured again.
    project.lose_result(&first).lose_summary(SMALL);
    let train = format!("train {first}");
    let all = [&train, &parse, &aggregate, LATER];
    project.expect(&all, &all);
    // What later tasks left.
    for (kind, task, name, stale) in [
        (TaskKind::Compare, "compare m", "compare.json", LATER),
        (TaskKind::Plot, "plot m", "compare.svg", "{plot,report} m"),
        (TaskKind::Report, "report m", "compare.txt", "report m"),
        (TaskKind::Render, &format!("render {SMALL}"), "cmd.sh", "render *"),
    ] {
        project.lose(project.output(kind, task, name));
        project.expect(
            &[stale],
            &[if kind == TaskKind::Plot { "plot m" } else { stale.split_once(',').map_or(stale, |_| task) }],
        );
    }
}

#[test]
fn a_log_and_its_result_are_not_measured_again_while_their_summary_is_there() {
    let project = Project::built();
    let first = format!("{SMALL}#1");
    project.lose_log(&first).lose_result(&first);
    project.expect_nothing();
    // When the comparison is due again, the summary is all it needs.
    project.edit("config.yaml", "per_gpu_hour: 1.00", "per_gpu_hour: 2.00");
    project.expect(&[LATER], &[LATER]);
    // Other statistics need the results, and this one has to be measured again.
    project.edit("config.yaml", "skip_steps: 1", "skip_steps: 2");
    let (train, parse) = (format!("train {first}"), format!("parse {first}"));
    let all = [&train, &parse, "aggregate *", LATER];
    project.expect(&all, &all);
}

#[test]
fn what_only_people_read_of_a_run_is_not_measured_again() {
    let project = Project::built();
    let first = format!("{SMALL}#1");
    project.lose(project.output(TaskKind::Train, &format!("train {first}"), "times"));
    project.expect_nothing();
    project.lose_result(&first);
    let parse = format!("parse {first}");
    project.expect(&[&parse, &format!("aggregate {SMALL}"), LATER], &[&parse]);
}

#[test]
fn declared_globs_see_files_come_and_go() {
    let project = Project::new();
    project.edit("config.yaml", "inputs: [train.sh]", "inputs: [train.sh, \"lib/**/*.sh\"]");
    project.write("lib/a.sh", "# a").write("lib/deep/notes.md", "none of it");
    assert_eq!(project.build(&[]).code, 0);
    project.write("lib/deep/b.sh", "# b");
    // As people call it: the note that the last build left must see it too.
    let (code, out, _) = project.tprimat(&["build", "--json"]);
    let says: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &says["ran"], project.launches()), (0, &json!(13), 8));
    project.expect_nothing();
    project.remove("lib/deep/b.sh");
    project.expect(&["report m"], &["report m"]);
    // A glob over everything sees nothing of what builds write themselves.
    project.edit("config.yaml", "lib/**/*.sh", "**/*.{sh,json,toml}");
    assert_eq!(project.build(&[]).code, 0);
    project.write("cache/runs/left/cmd.sh", "# of a run that was killed").write("output/mine.json", "{}");
    project.expect_nothing();
}

#[test]
fn what_was_published_is_published_again() {
    let project = Project::built();
    project.remove("output/train_cpu_cmd_small.json");
    project.expect(&["report m"], &["report m"]);
    project.write("output/compare.txt", "nonsense");
    project.expect(&["report m"], &["report m"]);
    assert!(project.read("output/compare.txt").contains(SMALL));
    let config = project.read("config.yaml");
    project.write("config.yaml", &(config + "\npaths: { output: elsewhere }\n"));
    project.expect(&["report m"], &["report m"]);
    assert!(project.path("elsewhere/compare.png").is_file() && project.path("elsewhere/plot_throughput.svg").is_file());
}

#[test]
fn a_lasting_failure_waits_for_retry_failed() {
    let project = Project::new();
    project.write("mood.sh", IMPORT_ERROR);
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (1, 4), "{}", built.stderr);
    // It blocks nobody.
    let table = project.read("output/compare.txt");
    assert!(table.contains(SMALL) && table.contains(LARGE), "{table}");
    assert!(project.path("output/train_cpu_cmd_large.json").is_file());
    assert_eq!(project.plan(&[])[&format!("train {SMALL}#1")].state, "failed");
    assert_eq!(project.stale(&[]), BTreeSet::new());
    // Still failed, and not tried again.
    let built = project.build(&[]);
    assert_eq!((built.code, built.ran, project.launches()), (1, BTreeSet::new(), 4));
    // With the cause gone as well: no key covers it.
    project.remove("mood.sh");
    assert_eq!(project.build(&[]).code, 1);
    assert_eq!(project.launches(), 4);
    let retried = project.build(&["--retry-failed"]);
    assert_eq!((retried.code, project.launches()), (0, 6), "{}", retried.stderr);
    project.expect_nothing();
}

#[test]
fn a_key_that_changed_tries_a_lasting_failure_again() {
    let project = Project::new();
    project.write("mood.sh", IMPORT_ERROR);
    assert_eq!(project.build(&[]).code, 1);
    project.remove("mood.sh").edit("config.yaml", "OF_PLATFORM: \"0\"", "OF_PLATFORM: \"1\"");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 8));
}

#[test]
fn a_passing_failure_is_tried_again_by_the_next_build() {
    let project = Project::new();
    project.write("mood.sh", UNKNOWN_ERROR);
    assert_eq!((project.build(&[]).code, project.launches()), (1, 4));
    let failed: BTreeSet<_> = project.stale(&[]).into_iter().filter(|id| id.starts_with("train ")).collect();
    assert_eq!(failed, BTreeSet::from([format!("train {SMALL}#1"), format!("train {SMALL}#2")]));
    assert_eq!((project.build(&[]).code, project.launches()), (1, 6));
    project.remove("mood.sh");
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 8), "{}", built.stderr);
    project.expect_nothing();
}

#[test]
fn a_run_that_contradicts_its_job_is_kept_and_does_not_count() {
    let project = Project::new();
    project.write("mood.sh", WRONG_LENGTH);
    let built = project.build(&[]);
    assert_eq!((built.code, &built.says["contradicted"]), (1, &json!(2)), "{}", built.says);
    let comparison: serde_json::Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let rows: Vec<_> = comparison["rows"].as_array().unwrap().iter().map(|r| r["cell"].clone()).collect();
    assert_eq!(rows, [json!(LARGE)]);
    assert_eq!(comparison["absent"][0]["state"], "contradicted");
    assert_eq!(project.json(&["show", &format!("{SMALL}#1")])["attestation"]["status"], "contradicted");
    // It is a measurement: nothing runs again, and the exit code goes on saying so.
    let built = project.build(&[]);
    assert_eq!((built.code, built.ran, project.launches()), (1, BTreeSet::new(), 4));
}

#[test]
fn remeasuring_keeps_what_was_measured() {
    let project = Project::built();
    let before = project.json(&["show", SMALL])["repeats"][0]["attempt"].clone();
    let built = project.build(&["--remeasure", "--only", "cpu/cmd/small"]);
    assert_eq!((built.code, project.launches()), (0, 6), "{}", built.stderr);
    let trained: Vec<_> = built.ran.iter().filter(|id| id.starts_with("train ")).cloned().collect();
    assert_eq!(trained, [format!("train {SMALL}#1"), format!("train {SMALL}#2")]);
    let after = project.json(&["show", SMALL])["repeats"][0]["attempt"].clone();
    assert_ne!(before, after);
    let cache = project.cache();
    let key = cache.last_of(TaskKind::Train, &format!("train {SMALL}#1")).unwrap().key;
    let attempts: Vec<_> = cache.attempts(&key).into_iter().map(|a| (json!(a.id), a.generation)).collect();
    assert_eq!(attempts, [(after, 1), (before, 0)]);
    project.expect_nothing();
}

/// A second model of the same shape, in place of `large`.
fn with_twin(project: &Project) {
    let config = project.read("config.yaml");
    let small = config.lines().find(|line| line.starts_with("  small:")).unwrap();
    project.edit("config.yaml", "models:\n", &format!("models:\n{}\n", small.replace("small:", "twin:")));
    project.edit("matrix.toml", "[\"small\", \"large\"]", "[\"small\", \"twin\"]");
}

#[test]
fn cells_that_ask_for_the_same_share_a_measurement_and_say_so() {
    let project = Project::new();
    with_twin(&project);
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 2), "{}", built.stderr);
    let attempt = |cell: &str| project.json(&["show", cell])["repeats"][0]["attempt"].clone();
    let is_said = || project.read("output/compare.txt").contains("the same measurements as cpu/cmd/small/single");
    assert_eq!(attempt(SMALL), attempt("cpu/cmd/twin/single"));
    assert!(is_said());
    project.expect_nothing();
    // Another file that one of them declares makes them two.
    let own = "\n[[override]]\nwhere = { model = \"twin\" }\nset = { \"frameworks.cmd.inputs\" = [\"matrix.toml\"] }\n";
    project.write("matrix.toml", &(project.read("matrix.toml") + own));
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    assert!(!is_said());
}

#[test]
fn platforms_whose_facts_agree_share_a_measurement_and_say_so() {
    let project = Project::new();
    project.edit(
        "config.yaml",
        "  platforms:\n",
        "  platforms:\n    box: { vendor: cpu, env: { OF_PLATFORM: \"0\" } }\n",
    );
    project.edit("matrix.toml", "platform = \"cpu\"", "platform = [\"cpu\", \"box\"]");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    let told = "box/cmd/small/single: the same measurements as cpu/cmd/small/single, since";
    assert!(project.read("output/compare.txt").contains(told));
}

#[test]
fn a_failure_is_shared_as_well() {
    let project = Project::new();
    with_twin(&project);
    project.write("mood.sh", IMPORT_ERROR);
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
    assert_eq!(project.plan(&[])["train cpu/cmd/twin/single#2"].state, "failed");
    assert_eq!((project.build(&[]).code, project.launches()), (1, 2));
}

#[test]
fn a_selection_limits_what_runs_and_not_what_is_compared() {
    let project = Project::new();
    let built = project.build(&["--only", "cpu/cmd/small"]);
    assert_eq!((built.code, project.launches()), (0, 2), "{}", built.stderr);
    assert!(built.ran.iter().all(|id| !id.contains("large")), "{:?}", built.ran);
    let comparison = || -> serde_json::Value { serde_json::from_str(&project.read("output/compare.json")).unwrap() };
    assert_eq!(comparison()["absent"][0]["cell"], LARGE);
    assert_eq!(comparison()["absent"][0]["state"], "missing");
    assert_eq!(project.build(&["--only", "cpu/cmd/large"]).code, 0);
    // The other cell's summary is fresh, so it is in the table as well.
    assert_eq!(comparison()["rows"].as_array().map(Vec::len), Some(2));
    // A stale cell that is not selected neither runs nor keeps the others from being compared.
    project.edit("config.yaml", "vocab_size: 64", "vocab_size: 96");
    assert_eq!(project.build(&["--only", "cpu/cmd/small"]).code, 0);
    assert_eq!((project.launches(), comparison()["absent"][0]["cell"].clone()), (4, json!(LARGE)));
}

#[test]
fn exit_codes() {
    let project = Project::new();
    let code = |arguments: &[&str]| project.tprimat(arguments).0;
    assert_eq!(code(&["plan"]), 0);
    assert_eq!(code(&["plan", "--exit-code"]), 5);
    assert_eq!(code(&["build", "--cached-only", "--require-complete"]), 5);
    assert_eq!(project.launches(), 0);
    assert_eq!(code(&["build", "--only", "cpu/cmd/tiny"]), 4);
    assert_eq!(code(&["build", "--only", "cpu/cmd/small", "--require-complete"]), 5);
    assert_eq!(code(&["build", "--require-complete"]), 0);
    assert_eq!(code(&["plan", "--exit-code"]), 0);
    assert_eq!(code(&["build", "--no-such-option"]), 2);
    assert_eq!(code(&["build", "no-such-matrix"]), 2);
    project.edit("config.yaml", "seq_length: 64", "seq_lenght: 64");
    assert_eq!(code(&["build"]), 2);
    assert_eq!(code(&["plan", "--json"]), 2);
    assert_eq!(project.json(&["plan"])["error"]["exit_code"], 2);
}

/// A small generator of our own: a seed printed is a failure found again.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) % sides as u64) as usize
    }
    fn pick<T: Copy>(&mut self, items: &[T]) -> T {
        items[self.roll(items.len())]
    }
}

struct Game {
    dice: Dice,
    project: Project,
    world: World,
    oracle: Oracle,
    /// What was done, for the one who reads a failure.
    history: Vec<String>,
}

impl Game {
    fn new(seed: u64) -> Self {
        let (project, world) = (Project::new(), World::default());
        let history = vec![format!("seed {seed}")];
        let game = Self { dice: Dice(seed), project, world, oracle: Oracle::default(), history };
        game.save();
        game
    }

    fn save(&self) {
        for (name, text) in self.world.files() {
            if std::fs::read_to_string(self.project.path(name)).ok().as_ref() != Some(&text) {
                self.project.write(name, &text);
            }
        }
    }

    /// Changes one thing of what the project says.
    fn edit(&mut self) {
        let before = self.world.clone();
        let (w, d) = (&mut self.world, &mut self.dice);
        let up = |n: &mut u32| *n += 1;
        match d.roll(26) {
            0 => w.seq_length = d.pick(&[64, 128, 256]),
            1 => w.small_seq_length = d.pick(&[None, Some(16), Some(64)]),
            2 => w.learning_rate = d.pick(&[1, 2, 3]),
            3 => w.norm_eps_of_large = d.pick(&[5, 6]),
            4 => up(&mut w.flavor),
            5 | 6 => {
                // An axis value comes or goes.
                let seeds: [&[u32]; 6] = [&[1], &[2], &[1, 2], &[2, 1], &[3], &[1, 3]];
                w.seeds = d.pick(&seeds).to_vec();
            }
            7 | 24 => w.template = d.pick(&[0, 1, 2]),
            8 => w.template_spelling = d.roll(4) as u32,
            9 => up(&mut w.recipe_file),
            10 => up(&mut w.trainer),
            11 => w.platform_env = d.roll(2) as u32,
            12 => w.framework_env = d.roll(2) as u32,
            13 | 14 => w.repeats = d.pick(&[1, 2, 3]),
            15 => w.skip_steps = d.roll(3) as u32,
            16 | 17 => w.price = d.pick(&[1, 2, 3]),
            18 => up(&mut w.description),
            19 => up(&mut w.comments),
            20 => w.blank_lines = d.roll(3) as u32,
            21 => w.key_order = d.roll(7) as u32,
            22 => up(&mut w.recipe_toml),
            25 => w.seeds.reverse(),
            _ => up(&mut w.unknown_files),
        }
        let (old, new) = (format!("{before:?}"), format!("{:?}", self.world));
        let changed = old.split(", ").zip(new.split(", ")).find(|(a, b)| a != b);
        self.history.push(changed.map_or("no change".into(), |(a, b)| format!("{a} -> {b}")));
        self.save();
    }

    /// Does something to files that is no edit.
    fn accident(&mut self) {
        let d = &mut self.dice;
        match d.roll(10) {
            8 | 9 => {
                // A recent one: older ones are of keys that may never come back.
                let number = self.oracle.measurements() - d.roll(6).min(self.oracle.measurements() as usize - 1) as u32;
                self.history.push(format!("lose log and result of measurement {number}"));
                for digest in self.oracle.of_measurement(number) {
                    self.project.lose(digest);
                    self.oracle.lose(digest);
                }
            }
            0..=3 => {
                let objects = self.oracle.objects();
                let (what, digest) = objects[d.roll(objects.len())].clone();
                self.history.push(format!("lose {what}"));
                self.project.lose(digest);
                self.oracle.lose(digest);
            }
            4 | 5 => {
                let published = self.oracle.published();
                let name = published[d.roll(published.len())].clone();
                self.history.push(format!("delete output/{name}"));
                let _ = std::fs::remove_file(self.project.path(&format!("output/{name}")));
                self.oracle.unpublish(&name);
            }
            6 => {
                let files = self.world.files();
                let name = files[d.roll(files.len())].0;
                self.history.push(format!("touch {name}"));
                self.project.touch(name);
            }
            _ => {
                self.history.push("copy the checkout".into());
                self.project.move_to_copy();
            }
        }
    }

    /// One round: some changes, a plan, a build, and all is fresh.
    fn play(&mut self) {
        let before = self.world.clone();
        for _ in 0..=self.dice.roll(2) {
            match self.dice.roll(3) {
                0 => self.accident(),
                _ => self.edit(),
            }
        }
        if self.dice.roll(6) == 0 && self.world != before {
            self.check_plan();
            self.history.push("undo".into());
            self.world = before;
            self.save();
        }
        self.check_plan();
        self.check_build();
        assert_eq!(self.project.stale(&[]), BTreeSet::new(), "after a build; {:#?}", self.history);
    }

    fn check_plan(&self) {
        let (found, expected) = (self.project.stale(&[]), self.oracle.stale(&self.world));
        let missed: Vec<_> = expected.difference(&found).collect();
        let too_much: Vec<_> = found.difference(&expected).collect();
        assert!(
            missed.is_empty() && too_much.is_empty(),
            "must be stale: {missed:#?}\nmust not: {too_much:#?}\n{:#?}",
            self.history
        );
    }

    fn check_build(&mut self) {
        let before = self.project.launches();
        let expected = self.oracle.build(&self.world);
        if self.dice.roll(2) == 0 {
            let built = self.project.build(&[]);
            assert_eq!(built.code, 0, "{}\n{:#?}", built.stderr, self.history);
            let ids: BTreeSet<String> = expected.keys().cloned().collect();
            assert_eq!(built.ran, ids, "ran (left), must run (right); {:#?}", self.history);
        } else {
            // As people call it: what the last build noted may answer.
            let (code, out, err) = self.project.tprimat(&["build", "--json"]);
            let says: serde_json::Value = serde_json::from_str(&out).unwrap_or_default();
            assert_eq!((code, &says["ran"]), (0, &json!(expected.len())), "{out}{err}{:#?}", self.history);
        }
        let trained = expected.keys().filter(|id| id.starts_with("train ")).count();
        assert_eq!(self.project.launches() - before, trained, "launches; {:#?}", self.history);
        self.oracle.learn(&expected, &self.project.cache());
    }
}

fn random_edits(seed: u64) {
    let seed = std::env::var("TPRIMAT_TEST_SEED").map_or(seed, |s| s.parse().expect("a number"));
    let rounds = std::env::var("TPRIMAT_TEST_ROUNDS").map_or(30, |s| s.parse().expect("a number"));
    let mut game = Game::new(seed);
    game.check_plan();
    game.check_build();
    for round in 1..=rounds {
        game.history.push(format!("round {round}"));
        game.play();
    }
}

#[test]
fn random_edits_run_exactly_what_the_oracle_says() {
    random_edits(1);
}

#[test]
fn other_random_edits_run_exactly_what_the_oracle_says() {
    random_edits(2);
}
