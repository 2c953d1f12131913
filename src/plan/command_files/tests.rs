use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::files::{Durability, write_atomically};

/// A project in a folder `p`, with a file beside it.
fn project() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let root = folder.path().join("p");
    for file in [
        "train.py",
        "conf/a.yaml",
        "conf/b.yaml",
        "pkg/mod.py",
        "tool/__main__.py",
        "data.txt",
        ".venv/pyvenv.cfg",
        ".venv/bin/python",
        "out.json",
        "log",
        "a file",
        "../shared.py",
    ] {
        write_atomically(&root.join(file), file.as_bytes(), Durability::Plain).unwrap();
    }
    (folder, root)
}

fn env() -> BTreeMap<String, String> {
    let one = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    [one("CONF", "a"), one("FILE", "conf/b.yaml")].into()
}

#[test]
fn variables_of_the_cell_lead_to_files_and_what_is_not_followed_is_told() {
    let (_folder, root) = project();
    let named =
        |script: &str| named_by(&root, &json!(script), &env(), &ReadSet::default()).unwrap();
    for (script, files) in [
        (
            "python train.py conf/$CONF.yaml",
            &["train.py", "conf/a.yaml"][..],
        ),
        (
            "python train.py --conf=conf/${CONF}.yaml",
            &["train.py", "conf/a.yaml"],
        ),
        ("python train.py $FILE", &["train.py", "conf/b.yaml"]),
        (
            "cat conf/a.yaml,conf/b.yaml",
            &["conf/a.yaml", "conf/b.yaml"],
        ),
        ("python $CONFIG train.py", &["train.py"]),
        (
            "CONF=${CONF:-b}; export FILE=$FILE; cat conf/$CONF.yaml $FILE",
            &["conf/b.yaml", "conf/a.yaml"],
        ),
    ] {
        assert_eq!(named(script).files, files, "{script}");
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let link = elsewhere.path().join("latest.sh");
    std::os::unix::fs::symlink(root.join("train.py"), &link).unwrap();
    let link = link.to_str().unwrap();
    let by_link = format!("bash {link}");
    let in_bin = elsewhere.path().join("bin/launch.sh");
    write_atomically(&in_bin, b"x", Durability::Plain).unwrap();
    let in_bin = in_bin.to_str().unwrap();
    let by_bin = format!("bash {in_bin}");
    std::os::unix::fs::symlink("p/train.py", root.join("../link.py")).unwrap();
    for (script, unfollowed) in [
        (
            "python train.py conf/$OTHER.yaml",
            &["conf/$OTHER.yaml"][..],
        ),
        (
            "python train.py conf/${CONF:-b}.yaml",
            &["conf/${CONF:-b}.yaml"],
        ),
        (
            "python train.py ~/x.json $HOME/y.json",
            &["~/x.json", "$HOME/y.json"],
        ),
        ("python train.py conf", &["conf"]),
        (
            "cat conf/*.yaml conf/{a,b}.yaml",
            &["conf/*.yaml", "conf/{a,b}.yaml"],
        ),
        ("$TPRIMAT_PYTHON train.py $TPRIMAT_RUN_DIR/x $N", &[]),
        // The script's own word for it is stronger than the cell's.
        (
            "CONF=$CONF-small; cat conf/$CONF.yaml",
            &["conf/$CONF.yaml"],
        ),
        (
            "for CONF in a b; do cat conf/$CONF.yaml; done",
            &["conf/$CONF.yaml"],
        ),
        (
            "python train.py --conf=conf/$OTHER.yaml",
            &["conf/$OTHER.yaml"],
        ),
        (
            "while read -r _ CONF; do cat conf/$CONF.yaml; done",
            &["conf/$CONF.yaml"],
        ),
        ("CONF=b bash -c 'cat conf/$CONF.yaml'", &["conf/$CONF.yaml"]),
        (
            "curl https://host/x?y=1 s3://b/$OTHER/x.json '--cfg={\"lr\":0.1}' \"{'lr':0.1,'b':1}\" '{lr:0.1,b:1}'",
            &[],
        ),
        (&by_link, std::slice::from_ref(&link)),
        (&by_bin, std::slice::from_ref(&in_bin)),
        ("python ../link.py", &["../link.py"]),
        ("python -m tool", &["tool"]),
        ("python tool", &["tool"]),
        (".venv/bin/python train.py", &[]),
    ] {
        let named = named(script);
        assert_eq!(named.unfollowed, unfollowed, "{script}");
        // What is there is not taken for something that the run makes.
        let is_there = |name: &String| root.join(name).is_file();
        assert!(!named.absent.iter().any(is_there), "{script}: {named:?}");
    }
}

#[test]
fn the_files_that_a_command_names_are_inputs() {
    let (_folder, root) = project();
    let named = |command: Value| {
        named_by(&root, &command, &env(), &ReadSet::default())
            .unwrap()
            .files
    };
    let absolute = root.join("train.py");
    assert_eq!(
        named(json!(["python", "./train.py", "--config=conf/a.yaml"])),
        ["train.py", "conf/a.yaml"]
    );
    assert_eq!(
        named(json!([".venv/bin/python", absolute, "-c", "conf/a.yaml"])),
        ["train.py", "conf/a.yaml"]
    );
    assert_eq!(
        named(json!("python 'train.py' --output out.json > log")),
        ["train.py"]
    );
    assert_eq!(
        named(json!(["bash", "train.py", "-o", "out.json"])),
        ["train.py"]
    );
    assert_eq!(named(json!("bash train.py | tee -a log")), ["train.py"]);
    // A word that only has an output's letters in it does not write.
    assert_eq!(
        named(json!(["torchrun", "--rdzv-timeout=900", "train.py"])),
        ["train.py"]
    );
    assert_eq!(
        named(json!(["python", "train.py", "--router", "conf/a.yaml"])),
        ["train.py", "conf/a.yaml"]
    );
    for option in [
        "--checkpoint",
        "--ckpt-path",
        "--log-config",
        "--metrics_config",
        "--trace",
        "--output-config",
    ] {
        let both = ["train.py", "data.txt"];
        assert_eq!(
            named(json!(["python", "train.py", option, "data.txt"])),
            both,
            "{option} may read"
        );
        assert_eq!(
            named(json!(["python", "train.py", format!("{option}=data.txt")])),
            both,
            "{option} may read"
        );
    }
    for option in [
        "--save-dir",
        "--output_path",
        "--out",
        "--results",
        "--log-file",
        "--save",
    ] {
        assert_eq!(
            named(json!(["python", "train.py", option, "data.txt"])),
            ["train.py"],
            "{option} writes"
        );
    }
    assert_eq!(
        named(json!([
            "python",
            "-m",
            "pkg.mod",
            "--out=out.json",
            "../x",
            "/proc/self/stat"
        ])),
        ["pkg/mod.py"]
    );
}

#[test]
fn so_are_files_by_an_absolute_path_and_programs_are_not() {
    let (_folder, root) = project();
    let elsewhere = tempfile::tempdir().unwrap();
    let file = |name: &str| {
        let path = elsewhere.path().join(name);
        write_atomically(&path, b"x", Durability::Plain).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (trainer, python) = (file("train.py"), file("bin/python3"));
    let absent = elsewhere.path().join("later.txt");
    let named = named_by(
        &root,
        &json!([python, trainer, "-c", "conf/a.yaml", absent]),
        &env(),
        &ReadSet::default(),
    )
    .unwrap();
    assert_eq!(named.files, [&*trainer, "conf/a.yaml"]);
    assert_eq!(named.absent, [absent.to_str().unwrap()]);
    let script = format!("cd / && python3 {trainer}");
    let of_script = named_by(&root, &json!(script), &env(), &ReadSet::default()).unwrap();
    assert_eq!(of_script.files, [trainer]);
}

#[test]
fn so_are_those_in_scripts_behind_operators_and_below_the_projects_folder() {
    let (_folder, root) = project();
    let named = |script: &str| {
        let names = |command| {
            named_by(&root, &command, &env(), &ReadSet::default())
                .unwrap()
                .files
        };
        let plain = names(json!(script));
        // A list that starts a shell has the script as one word.
        assert_eq!(
            names(json!(["timeout", "9", "bash", "-c", script])),
            plain,
            "{script}"
        );
        plain
    };
    for (script, expected) in [
        ("set -e; python train.py", &["train.py"][..]),
        (
            "python train.py&&cat conf/a.yaml",
            &["train.py", "conf/a.yaml"],
        ),
        (
            "cat conf/a.yaml|python train.py<data.txt >log 2>out.json",
            &["conf/a.yaml", "train.py", "data.txt"],
        ),
        ("python $TPRIMAT_PROJECT_DIR/train.py", &["train.py"]),
        (
            "python \"${TPRIMAT_PROJECT_DIR}\"/train.py ${PWD}/data.txt",
            &["train.py", "data.txt"],
        ),
        (
            "python \"${TPRIMAT_PROJECT_DIR:?}/train.py\"",
            &["train.py"],
        ),
        ("python \"$(pwd)/train.py\"", &["train.py"]),
        (
            "cd conf && python ../train.py a.yaml",
            &["train.py", "conf/a.yaml"],
        ),
        (
            "cd \"$TPRIMAT_PROJECT_DIR/conf\"; cat b.yaml",
            &["conf/b.yaml"],
        ),
        ("python ../shared.py", &["../shared.py"]),
        (
            "CONFIG=conf/a.yaml python train.py",
            &["conf/a.yaml", "train.py"],
        ),
        (
            "bash -c 'python train.py; cat \"a file\"'",
            &["train.py", "a file"],
        ),
        (
            "x=$(cat data.txt) python train.py `cat conf/a.yaml`",
            &["data.txt", "train.py", "conf/a.yaml"],
        ),
        ("python -c \"exec(open('train.py').read())\"", &["train.py"]),
        (
            "diff <(cat conf/a.yaml) <(cat conf/b.yaml) &> log",
            &["conf/a.yaml", "conf/b.yaml"],
        ),
        (
            "python train.py # and not data.txt\ncat conf/a.yaml",
            &["train.py", "conf/a.yaml"],
        ),
        (
            "torchrun train.py @conf/a.yaml",
            &["train.py", "conf/a.yaml"],
        ),
        ("python train.py >> log 2>&1 <<< data.txt", &["train.py"]),
        (
            "if python train.py; then tee log out.json; fi",
            &["train.py"],
        ),
        ("echo train\\.py", &["train.py"]),
    ] {
        assert_eq!(named(script), expected, "{script}");
    }
}

#[test]
fn what_may_become_a_file_is_kept_apart() {
    let (_folder, root) = project();
    let reads = ReadSet::default();
    let named = named_by(
        &root,
        &json!("python train.py --journal new.txt --out made.json -n 5 > x"),
        &env(),
        &reads,
    );
    assert_eq!(named.unwrap().absent, ["python", "new.txt"]);
}

proptest! {
    #[test]
    fn no_script_stops_the_tokenizer_and_a_quoted_word_stays_whole(script in "[a-z '\"\\\\$(){}<>|&;#`\n]{0,60}", word in "[^\0]{0,30}") {
        let (_folder, root) = project();
        let _ = named_by(&root, &json!(script), &env(), &ReadSet::default()).unwrap();
        let quoted = shlex::try_quote(&word).unwrap().into_owned();
        // These two are expanded in whatever quotes: better one input too many.
        if !word.contains("$(pwd)") && !word.contains("`pwd`") && !word.is_empty() {
            prop_assert_eq!(tokens(&quoted), vec![Token::Word(word)]);
        }
    }
}
