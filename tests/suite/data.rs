//! Datasets: what `data` says of them, and what of them is in keys.

use std::collections::BTreeSet;

use crate::support::{
    Project, dataset,
    tasks::{LARGE, SMALL, UNKNOWN_ERROR},
};
use tprimat::{data::Dtype, files};

/// A dataset of one document, in place of what was there.
fn write_dataset(project: &Project, name: &str, tokens: &[i64]) {
    dataset::write_dataset(&project.path(name), Dtype::U16, &[vec![tokens.to_vec()]]);
}

fn tokens(seed: i64) -> Vec<i64> {
    (0..600).map(|i| (i * 7 + seed) % 30).collect()
}

/// `small` trains on data/c4, `large` on synthetic tokens; its trainer leaves behind where it was
/// sent.
fn with_dataset() -> Project {
    let project = Project::of_two();
    project.edit(
        "config.yaml",
        "vocab_size: 32 }",
        "vocab_size: 32, dataset_path: data/c4 }",
    );
    project.write(
        "mood",
        "echo \"${TPRIMAT_DATASET-none} ${TPRIMAT_TOKENIZER-none}\" > \"$TPRIMAT_PROJECT_DIR/sent.$vocab\"\n",
    );
    write_dataset(&project, "data/c4", &tokens(0));
    project
}

/// What an error says, without the line breaks that it was printed with.
fn flat(stderr: &str) -> String {
    stderr
        .replace('│', " ")
        .split_whitespace()
        .collect::<Vec<_>>()
        .join(" ")
}

fn stale_trains(project: &Project) -> BTreeSet<String> {
    project
        .stale(&[])
        .into_iter()
        .filter(|id| id.starts_with("train "))
        .collect()
}

#[test]
fn the_path_reaches_the_trainer_and_nothing_else_and_the_digest_the_lock() {
    let project = with_dataset();
    let built = project.build(&[]);
    assert_eq!(built.code, 0, "{}", built.stderr);
    let sent = |vocab: u32| project.read(&format!("sent.{vocab}"));
    assert_eq!(
        sent(32),
        format!("{} none\n", project.path("data/c4").display())
    );
    assert_eq!(sent(64), "none none\n");
    let out = project
        .run(&[
            "data",
            "fingerprint",
            project.path("data/c4").to_str().unwrap(),
        ])
        .ends_with(0)
        .stdout;
    let digest = out.lines().next().unwrap().to_owned();
    let lock = project.read("tprimat.lock");
    assert!(
        lock.contains(&format!("[platform.cpu.datasets]\nc4 = \"{digest}\"\n")),
        "{lock}"
    );
    project.expect_nothing();
}

#[test]
fn other_bytes_are_drift_and_once_locked_make_exactly_their_cells_stale() {
    let project = with_dataset();
    assert_eq!(project.build(&[]).code, 0);
    write_dataset(&project, "data/c4", &tokens(1));
    // As with any other fact: keys are of the lock, and what contradicts it does not run.
    project.expect_nothing();
    project.edit("config.yaml", "seq_length: 64", "seq_length: 32");
    let err = project.run(&["build", "--only", SMALL]).ends_with(1).stderr;
    assert!(
        err.contains("datasets.c4") && err.contains("tprimat.lock:"),
        "{err}"
    );
    project.edit("config.yaml", "seq_length: 32", "seq_length: 64");

    let locked = project.read("tprimat.lock");
    let said = project.run(&["lock", "--update"]).ends_with(0).stdout;
    assert!(said.contains("datasets.c4 changed"), "{said}");
    let expected: BTreeSet<_> = [1, 2]
        .map(|repeat| format!("train {SMALL}#{repeat}"))
        .into();
    assert_eq!(stale_trains(&project), expected);
    let reason = project.plan(&[])[&format!("train {SMALL}#1")]
        .reason
        .clone();
    assert!(reason.contains("the dataset changed"), "{reason}");
    assert_eq!((project.build(&[]).code, project.launches()), (0, 6));
    // As it was: what was measured then counts again.
    write_dataset(&project, "data/c4", &tokens(0));
    project.run(&["lock", "--update"]).ends_with(0);
    assert_eq!(
        (project.read("tprimat.lock"), stale_trains(&project)),
        (locked, BTreeSet::new())
    );
}

#[test]
fn nothing_is_written_over_a_dataset() {
    let project = with_dataset();
    for extension in ["bin", "idx"] {
        let name = format!("data/c4.{extension}");
        let before = std::fs::read(project.path(&name)).unwrap();
        let ran = project.run(&["build", "--events", &name]).ends_with(2);
        assert!(
            ran.stderr.contains("the project reads this file"),
            "{ran:?}"
        );
        assert_eq!(std::fs::read(project.path(&name)).unwrap(), before);
    }
}

#[test]
fn another_path_with_the_same_content_makes_nothing_stale() {
    let project = with_dataset();
    assert_eq!(project.build(&[]).code, 0);
    write_dataset(&project, "elsewhere/c4", &tokens(0));
    project.edit("config.yaml", "data/c4", "elsewhere/c4");
    project.expect_nothing();
    write_dataset(&project, "elsewhere/renamed", &tokens(0));
    project.edit(
        "config.yaml",
        "elsewhere/c4",
        "elsewhere/renamed.idx, dataset_name: c4",
    );
    project.expect_nothing();
    assert_eq!(project.launches(), 4);
}

#[test]
fn a_tokenizer_is_pinned_beside_its_dataset() {
    let project = with_dataset();
    project.edit(
        "config.yaml",
        "dataset_path: data/c4",
        "dataset_path: data/c4, tokenizer_path: data/words/tokenizer.json",
    );
    project.write("data/words/tokenizer.json", "{}");
    assert_eq!(project.build(&[]).code, 0);
    assert!(
        project
            .read("sent.32")
            .ends_with("/data/words/tokenizer.json\n")
    );
    assert!(
        project
            .read("tprimat.lock")
            .contains("[platform.cpu.tokenizers]\nwords = ")
    );
    project.write("data/words/tokenizer.json", "{\"other\": 1}");
    project.run(&["lock", "--update"]).ends_with(0);
    assert_eq!(stale_trains(&project).len(), 2);
    assert!(
        project.plan(&[])[&format!("train {SMALL}#1")]
            .reason
            .contains("the tokenizer ")
    );
    // What a hub has under a name may change: nothing is pinned by the name, so nothing is
    // measured.
    project.edit(
        "config.yaml",
        "data/words/tokenizer.json",
        "some-hub/Large-8B",
    );
    let planned = &project.plan(&[])[&format!("train {SMALL}#1")];
    assert_eq!(planned.state, "waiting");
    assert!(
        planned
            .reason
            .contains("does not pin the tokenizer `Large-8B`"),
        "{}",
        planned.reason
    );
    assert!(
        planned
            .reason
            .contains("a tokenizer that is on a hub must be downloaded"),
        "{}",
        planned.reason
    );
}

#[test]
fn without_the_files_the_lock_serves_and_what_is_not_measured_waits() {
    let project = with_dataset();
    std::fs::remove_file(project.path("data/c4.bin")).unwrap();
    let state = |project: &Project, id: String| {
        let planned = project.plan(&[])[&id].clone();
        (planned.state, planned.reason)
    };
    let (is, why) = state(&project, format!("train {SMALL}#1"));
    assert!(
        is == "waiting" && why.contains("does not pin the dataset `c4`"),
        "{is}: {why}"
    );
    assert_eq!(
        (project.build(&[]).code, project.launches()),
        (0, 2),
        "the other model trains"
    );

    write_dataset(&project, "data/c4", &tokens(0));
    assert_eq!((project.build(&[]).code, project.launches()), (0, 4));
    std::fs::remove_file(project.path("data/c4.idx")).unwrap();
    project.expect_nothing();
    project.edit("config.yaml", "seq_length: 64", "seq_length: 32");
    let (is, why) = state(&project, format!("train {SMALL}#1"));
    assert!(
        is == "waiting" && why.contains("the dataset `c4` is not here"),
        "{is}: {why}"
    );
    assert_eq!(state(&project, format!("train {LARGE}#1")).0, "stale");
}

/// Its failure is told wherever the cell is looked at, but a build that cannot try it again has not
/// failed.
#[test]
fn a_cell_that_failed_elsewhere_and_waits_here_fails_no_build() {
    let project = with_dataset();
    project.write("mood", UNKNOWN_ERROR);
    assert_eq!((project.build(&[]).code, project.launches()), (1, 4));
    std::fs::remove_file(project.path("data/c4.idx")).unwrap();
    let built = project.build(&[]);
    assert_eq!((built.code, project.launches()), (0, 4), "{}", built.stderr);
    let absent = &project.json(&["compare"])["absent"][0];
    assert_eq!(
        (&absent["cell"], &absent["state"]),
        (&SMALL.into(), &"failed".into()),
        "{absent}"
    );
    assert!(
        absent["reason"]["text"]
            .as_str()
            .unwrap()
            .starts_with("unknown: "),
        "{absent}"
    );
}

#[test]
fn a_dataset_that_cannot_serve_is_refused_before_anything_runs() {
    let project = with_dataset();
    write_dataset(&project, "data/c4", &[1, 2, 40, 3]);
    let err = project.run(&["build", "--only", SMALL]).ends_with(1).stderr;
    let err = flat(&err);
    assert_eq!(project.launches(), 0);
    assert!(
        err.contains("the largest token is 40, the vocabulary has 32"),
        "{err}"
    );
    assert!(
        err.contains("4 tokens, less than one sequence of 64"),
        "{err}"
    );

    project.edit(
        "config.yaml",
        "vocab_size: 64, norm",
        "vocab_size: 64, dataset_path: other/c4, norm",
    );
    write_dataset(&project, "other/c4", &tokens(0));
    let err = project.run(&["plan"]).ends_with(2).stderr;
    assert!(
        flat(&err).contains("`c4` is the name of two datasets"),
        "{err}"
    );
    project.edit(
        "config.yaml",
        "other/c4, norm",
        "other/c4, dataset_name: c4-more, norm",
    );
    project.run(&["plan"]).ends_with(0);
}

#[test]
fn a_dataset_is_verified_and_fingerprinted() {
    let project = Project::of_two();
    let path = |name: &str| project.path(name).display().to_string();
    let output = path("made/colours");
    let documents = [vec![0, 1, 4], vec![2, 2, 4], vec![1, 3, 4]].map(|one| vec![one]);
    dataset::write_dataset(&project.path("made/colours"), Dtype::U16, &documents);
    let out = project
        .run(&["data", "verify", &output, "--vocab-size", "5"])
        .ends_with(0)
        .stdout;
    for line in [
        "documents   3",
        "sequences   3",
        "tokens      9",
        "uint16, 18 bytes",
        "0 to 4",
    ] {
        assert!(out.contains(line), "{line}: {out}");
    }
    let named = project.json(&["data", "fingerprint", &output]);
    assert_eq!(
        (
            named["documents"].clone(),
            named["fingerprint"].as_str().map(str::len)
        ),
        (3.into(), Some(64))
    );

    // All that is wrong, each once, and exit 2; for programs as one value.
    let idx = project.path("made/colours.idx");
    let mut bytes = files::read(&idx).unwrap();
    bytes.extend([0; 5]);
    std::fs::remove_file(&idx).unwrap();
    files::write_atomically(&idx, &bytes, files::Durability::Plain).unwrap();
    let err = project
        .run(&["data", "verify", &output, "--vocab-size", "4"])
        .ends_with(2)
        .stderr;
    let err = flat(&err);
    assert!(err.contains("5 bytes after its last table"), "{err}");
    assert!(
        err.contains("the largest token is 4, the vocabulary has 4"),
        "{err}"
    );
    assert_eq!(
        project.json(&["data", "verify", &output])["problems"]
            .as_array()
            .map(Vec::len),
        Some(1)
    );
    project.run(&["data", "fingerprint", &output]).ends_with(2);
    project
        .run(&["data", "verify", &path("nothing")])
        .ends_with(2);
    files::write_atomically(&idx, &bytes[..40], files::Durability::Plain).unwrap();
    let err = project
        .run(&["data", "verify", &output])
        .ends_with(2)
        .stderr;
    assert!(flat(&err).contains("is cut off"), "{err}");
}
