use proptest::prelude::*;

use super::*;
use crate::files;

fn section() -> Section {
    let mut section = Section::default();
    section.set("vendor", Some("nvd".into()));
    section.set("count", Some(Fact::Number(8)));
    section.set("accelerator", Some("NVIDIA H100 80GB HBM3".into()));
    section.set("driver", Some("570.124.06".into()));
    let found = [("torch", "2.11.0"), ("transformers", "5.0.1")];
    let found = found.map(|(name, version)| (name.to_owned(), version.to_owned()));
    section.packages.insert("tran".into(), found.into());
    section
}

fn problems(text: &str) -> Vec<String> {
    let problems = Lock::parse(&Source::new("tprimat.lock", text)).unwrap_err();
    problems.iter().map(ToString::to_string).collect()
}

#[test]
fn the_text_is_sorted_and_readable() {
    let lock = Lock::default()
        .with_section("nvd", section())
        .with_section("cpu", Section::default());
    let expected = r#"# What the numbers of each platform depend on. Written by tprimat; commit it.
# Refresh a platform on its own host: tprimat lock MATRIX --update

version = 1

[platform.cpu]

[platform.nvd]
accelerator = "NVIDIA H100 80GB HBM3"
count = 8
driver = "570.124.06"
vendor = "nvd"

[platform.nvd.recipe.tran.packages]
torch = "2.11.0"
transformers = "5.0.1"
"#;
    assert_eq!(lock.to_toml(), expected);
    assert_eq!(Lock::parse(&Source::new("", expected)), Ok(lock));
}

#[test]
fn a_lock_that_is_not_there_has_no_sections() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tprimat.lock");
    assert_eq!(
        Lock::load(&path, &files::ReadSet::default()).unwrap(),
        Lock::default()
    );
    files::write_atomically(
        &path,
        b"version = 1\n[platform.cpu]\ncount = 1.5",
        files::Durability::Plain,
    )
    .unwrap();
    assert_eq!(
        Lock::load(&path, &files::ReadSet::default())
            .unwrap_err()
            .to_string(),
        "tprimat.lock:3:9: neither a text in quotes nor a whole number"
    );
}

#[test]
fn what_is_wrong_is_told_with_its_place() {
    for (text, told) in [
        (
            "version = 1\nplatfrom = 1\n",
            "2:1: unknown field `platfrom`, expected `version` or `platform`",
        ),
        (
            "version = 1\n[platform.cpu]\ncount = true\n",
            "3:9: neither a text in quotes nor a whole number",
        ),
        (
            "version = 1\n[platform.nvd.recipe.tran]\nimage = 1\n",
            "3:1: unknown field `image`, expected `packages` or `checkouts`",
        ),
        (
            "version = 1\n[platform.nvd.recipe.tran]\npackages = { torch = 2 }",
            "3:22: invalid type: integer `2`, expected a string",
        ),
        (
            "version = 2\nmodules = []",
            "1:11: the lock has version 2, and this tprimat knows 1",
        ),
        ("version = 0", "1:11: not a version of the lock"),
        (
            "version = \"1\"",
            "1:11: invalid type: string \"1\", expected i64",
        ),
        ("", "1:1: missing field `version`"),
        (
            "version = 1\nplatform = []",
            "2:12: invalid type: sequence, expected a map",
        ),
    ] {
        assert_eq!(problems(text), [format!("tprimat.lock:{told}")]);
    }
    assert_eq!(problems("version = 1\n[platform\n").len(), 1);
}

#[test]
fn only_data_that_both_know_can_differ() {
    let with = |name: &str, digest: &str| {
        let mut section = section();
        section
            .data
            .entry("datasets".into())
            .or_default()
            .insert(name.into(), digest.into());
        section
    };
    let locked = with("c4", "aa");
    assert!(locked.diff(&section()).is_empty() && locked.diff(&with("pile", "bb")).is_empty());
    assert_eq!(locked.diff(&with("c4", "bb"))[0].name, "datasets.c4");
    let lock = Lock::default().with_section("nvd", locked);
    assert_eq!(
        Lock::parse(&Source::new("", lock.to_toml())),
        Ok(lock.clone())
    );
    assert!(
        lock.to_toml()
            .contains("[platform.nvd.datasets]\nc4 = \"aa\"\n"),
        "{}",
        lock.to_toml()
    );
    let text = "version = 1\n[platform.nvd.datasets]\nc4 = 1";
    let told = "tprimat.lock:3:6: invalid type: integer `1`, expected a string";
    assert_eq!(problems(text), [told]);
}

#[test]
fn exactly_the_lines_that_differ_are_named() {
    let locked = section();
    assert!(locked.diff(&locked).is_empty());
    let mut probed = section();
    probed.set("driver", Some("580.1".into()));
    probed.set("count", None);
    probed.set("cores", Some(Fact::Number(2)));
    probed
        .packages
        .get_mut("tran")
        .unwrap()
        .insert("apex".into(), "0.1".into());
    probed.packages.insert("native".into(), BTreeMap::new());
    let at = |commit: &str| {
        [(
            "PRIMUS_PATH".to_owned(),
            [("commit".to_owned(), commit.to_owned())].into(),
        )]
        .into()
    };
    let mut locked = locked;
    locked.set_checkouts("prim", at("a1"));
    probed.set_checkouts("prim", at("b2"));
    let diff = |name: &str, locked: Option<Fact>, found: Option<Fact>| FactDiff {
        name: name.into(),
        locked,
        found,
    };
    assert_eq!(
        locked.diff(&probed),
        [
            diff("cores", None, Some(Fact::Number(2))),
            diff("count", Some(Fact::Number(8)), None),
            diff("driver", Some("570.124.06".into()), Some("580.1".into())),
            diff("recipe.tran.packages.apex", None, Some("0.1".into())),
            diff(
                "recipe.prim.checkouts.PRIMUS_PATH.commit",
                Some("a1".into()),
                Some("b2".into())
            ),
        ]
    );
}

proptest! {
    #[test]
    fn any_lock_survives_writing_and_reading(
        facts in prop::collection::btree_map(".*".prop_filter("reserved", |n| n != "recipe" && !DATA_TABLES.contains(&n.as_str())), ".*", 0..5),
        number in any::<i64>(),
        packages in prop::collection::btree_map(".*", prop::collection::btree_map(".*", ".*", 0..3), 0..3),
        digests in prop::collection::btree_map(".*", ".*", 1..3),
        checkout in prop::collection::btree_map(".*", ".*", 0..3),
        platform in ".*",
    ) {
        let mut facts: BTreeMap<String, Fact> = facts.into_iter().map(|(n, t)| (n, Fact::Text(t))).collect();
        facts.insert("count".into(), Fact::Number(number));
        let data = [("datasets".to_owned(), digests)].into();
        let checkouts = [("prim".to_owned(), [("PRIMUS_PATH".to_owned(), checkout)].into())].into();
        let lock = Lock::default().with_section(&platform, Section { facts, packages, checkouts, data });
        let text = lock.to_toml();
        prop_assert_eq!(Lock::parse(&Source::new("", text.clone())), Ok(lock.clone()));
        prop_assert_eq!(lock.to_toml(), text);
    }

    #[test]
    fn no_text_makes_it_panic(text in "[a-z\\[\\]\\.=\"0-9\n {}]*") {
        let _ = Lock::parse(&Source::new("", text));
    }
}
