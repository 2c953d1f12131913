use super::*;
use crate::files::{Durability, write_atomically};

#[test]
fn a_declared_model_matches_what_the_driver_calls_it() {
    assert!(names_same_sku("H100", "NVIDIA H100 80GB HBM3"));
    assert!(!names_same_sku("H100", "NVIDIA H200"));
    assert!(names_same_sku("AMD Instinct MI300X", "MI300X"));
}

fn write_lock(project: &Path, text: &str) {
    write_atomically(&project.join(LOCK), text.as_bytes(), Durability::Plain).unwrap();
}

/// A book of a project whose lock is `text`, with a driver and packages that this host would add
/// for `nvd`.
fn book_of(project: &Path, text: &str, reads: &ReadSet) -> FactBook {
    write_lock(project, text);
    let mut book = FactBook::load(project, false, &BTreeMap::new(), reads).unwrap();
    let mut found = Section::default();
    found.set("driver", Some("570".into()));
    let torch = BTreeMap::from([("torch".to_owned(), "2.11.0".to_owned())]);
    found.packages.insert("tran".into(), torch);
    book.missing.insert("nvd".to_owned(), found);
    book
}

const PINNED: &str = "version = 1\n\n[platform.nvd]\ndriver = \"570\"\n";

#[test]
fn what_others_pinned_since_the_lock_was_read_stays() {
    let project = tempfile::tempdir().unwrap();
    let reads = ReadSet::default();
    let book = book_of(project.path(), PINNED, &reads);
    let others = "[platform.nvd.recipe.nemo.packages]\nnemo = \"2\"\n\n[platform.cpu]\ncores = 4\n";
    write_lock(project.path(), &format!("{PINNED}\n{others}"));
    assert_eq!(book.write_missing(&reads).unwrap(), ["nvd"]);
    let written = Lock::load(&project.path().join(LOCK), &ReadSet::default()).unwrap();
    let nvd = written.section("nvd").unwrap();
    assert_eq!(
        (
            &nvd.packages["nemo"]["nemo"][..],
            &nvd.packages["tran"]["torch"][..]
        ),
        ("2", "2.11.0")
    );
    assert_eq!(nvd.facts["driver"], "570".into());
    assert_eq!(
        written.section("cpu").unwrap().facts["cores"],
        Fact::Number(4)
    );
}

#[test]
fn a_lock_that_now_contradicts_the_plan_is_not_written_over() {
    let project = tempfile::tempdir().unwrap();
    let contradictions = [
        (PINNED.replace("570", "580"), "nvd, driver"),
        (
            format!("{PINNED}\n[platform.nvd.recipe.tran.packages]\ntorch = \"2.12.0\"\n"),
            "nvd, recipe.tran.packages.torch",
        ),
    ];
    for (now, name) in contradictions {
        let reads = ReadSet::default();
        let book = book_of(project.path(), PINNED, &reads);
        write_lock(project.path(), &now);
        let error = format!("{:?}", book.write_missing(&reads).unwrap_err());
        assert!(
            error.contains(&format!("was changed while this build was planned: {name}")),
            "{error}"
        );
        assert_eq!(
            std::fs::read_to_string(project.path().join(LOCK)).unwrap(),
            now
        );
    }
}
