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
        "mymodel.py",
        "conf/a.yaml",
        "conf/b.yaml",
        "pkg/__init__.py",
        "pkg/mod.py",
        "pkg/kernels/k.cu",
        "tool/__main__.py",
        "start",
        "data.txt",
        ".venv/pyvenv.cfg",
        ".venv/bin/python",
        ".venv/lib/x.py",
        ".cache/x.py",
        "conda/conda-meta/history",
        "conda/lib/y.py",
        "wandb/run-1/files/code/train.py",
        "cache/x.py",
        "recipes/other/train.py",
        "config.yaml",
        "log",
        "a file",
        "../shared.py",
    ] {
        write_atomically(&root.join(file), file.as_bytes(), Durability::Plain).unwrap();
    }
    (folder, root)
}

fn named(root: &Path, words: &[&str]) -> Named {
    let reads = ReadSet::default();
    reads.leave_out([root.join("cache"), root.join("output")]);
    named_by(root, &json!(words), &reads).unwrap()
}

const OF_ROOT: [&str; 6] = [
    "mymodel.py",
    "pkg/__init__.py",
    "pkg/kernels/k.cu",
    "pkg/mod.py",
    "tool/__main__.py",
    "train.py",
];

#[test]
fn words_that_are_files_and_the_code_below_the_first_script_are_inputs() {
    let (_folder, root) = project();
    let absolute = root.join("train.py");
    let of_pkg = &OF_ROOT[1..4];
    for (words, files, code) in [
        (
            &["python", "./train.py", "--conf=conf/a.yaml"][..],
            &["train.py", "conf/a.yaml"][..],
            &OF_ROOT[..],
        ),
        (
            &["python", absolute.to_str().unwrap(), "@data.txt"],
            &["train.py", "data.txt"],
            &OF_ROOT,
        ),
        (
            &[
                "accelerate",
                "launch",
                "--config_file",
                "conf/a.yaml",
                "train.py",
            ],
            &["conf/a.yaml", "train.py"],
            &OF_ROOT,
        ),
        (
            &["python", "pkg/mod.py", "conf/a.yaml,conf/b.yaml"],
            &["pkg/mod.py", "conf/a.yaml", "conf/b.yaml"],
            of_pkg,
        ),
        (
            &["python", "-m", "pkg.mod"],
            &["pkg/__init__.py", "pkg/mod.py"],
            of_pkg,
        ),
        (
            &["torchrun", "-m", "torch.run", "train.py"],
            &["train.py"],
            &OF_ROOT,
        ),
        (
            &["python", "-m", "tool"],
            &["tool/__main__.py"],
            &["tool/__main__.py"],
        ),
        (
            &["python", "tool"],
            &["tool/__main__.py"],
            &["tool/__main__.py"],
        ),
        (&["./start", "a file"], &["start", "a file"], &OF_ROOT),
        (
            &[
                ".venv/bin/python",
                "train.py",
                "../shared.py",
                "config.yaml",
            ],
            &["train.py", "../shared.py"],
            &OF_ROOT,
        ),
    ] {
        let named = named(&root, words);
        assert_eq!(
            (&named.files[..], &named.code[..]),
            (
                &files.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>()[..],
                &code.iter().map(|f| (*f).to_owned()).collect::<Vec<_>>()[..]
            ),
            "{words:?}"
        );
        assert_eq!(named.unknown, None, "{words:?}");
    }
}

#[test]
fn a_command_that_does_not_say_what_it_reads_is_told() {
    let (_folder, root) = project();
    for words in [
        &["mytool", "--steps", "3"][..],
        &["mytool", "conf/a.yaml"],
        &["bash", "-c", "python train.py"],
        &["conda", "run", "-n", "x", "mytool"],
        &[
            "/opt/conda/bin/mamba",
            "run",
            "-n",
            "x",
            "python",
            "conf/a.yaml",
        ],
        &["python", "-m", "json.tool"],
    ] {
        let named = named(&root, words);
        assert!(
            named.unknown.is_some() && named.code.is_empty(),
            "{words:?}: {named:?}"
        );
    }
    // A script that is not there is another mistake.
    assert_eq!(named(&root, &["python", "tran.py"]).unknown, None);
    for number in 0..MOST_CODE {
        let file = root.join(format!("gen/{number}.py"));
        write_atomically(&file, b"", Durability::Plain).unwrap();
    }
    let many = named(&root, &["python", "train.py"]);
    assert!(
        many.unknown
            .unwrap()
            .starts_with("2006 files of code are below the project")
    );
}

#[test]
fn what_conda_starts_has_its_inputs_stated_and_its_code_found() {
    let (_folder, root) = project();
    let named = named(&root, &["conda", "run", "-n", "x", "python", "train.py"]);
    assert!(named.unknown.unwrap().starts_with("`conda run` starts"));
    assert_eq!(named.code, OF_ROOT);
}

#[test]
fn the_files_that_settings_name_are_inputs_as_well() {
    let (_folder, root) = project();
    let write = |name: &str, text: &str| {
        write_atomically(&root.join(name), text.as_bytes(), Durability::Plain).unwrap();
    };
    write(
        "conf/a.yaml",
        "model: b.yaml\ndata: [data.txt, {of: conf/c.toml}]\nlr: 1.5\nout: out.json\ntext: see train.py\n\
         key: ../shared.py\nhost: /etc/passwd\nat: http://train.py\nself: conf/a.yaml\n",
    );
    write(
        "conf/c.toml",
        "schedule = [\"conf/d.json\"]\n[x]\nlog = \"log\"\n",
    );
    write("conf/d.json", "{\"x\": {\"y\": \"conf/big.bin\"}}");
    let big = std::fs::File::options()
        .create(true)
        .truncate(true)
        .write(true)
        .open(root.join("conf/big.bin"));
    big.unwrap().set_len(MOST_NAMED + 1).unwrap();
    let named = named(&root, &["python", "train.py", "--config", "conf/a.yaml"]);
    let mut files = named.files.clone();
    files.sort();
    assert_eq!(
        files,
        [
            "conf/a.yaml",
            "conf/b.yaml",
            "conf/c.toml",
            "conf/d.json",
            "data.txt",
            "train.py"
        ]
    );
    assert_eq!(named.unfollowed, ["conf/big.bin"]);
    // A run that makes it has written it.
    assert!(named.absent.contains(&"out.json".to_owned()), "{named:?}");
}

#[test]
fn a_text_that_needs_a_shell_is_told_from_words() {
    for (text, words) in [
        (
            "python train.py --lr 1e-3",
            &["python", "train.py", "--lr", "1e-3"][..],
        ),
        (
            "python 'a b.py' \"c d\" e\\ f",
            &["python", "a b.py", "c d", "e f"],
        ),
        (
            "python train.py --json '{\"lr\": [1, 2]}' a=b",
            &["python", "train.py", "--json", "{\"lr\": [1, 2]}", "a=b"],
        ),
        ("python a#b x~y", &["python", "a#b", "x~y"]),
    ] {
        assert_eq!(plain_words(text).unwrap(), words, "{text}");
    }
    for text in [
        "cd src && python train.py",
        "python train.py | tee log",
        "python train.py > log",
        "LR=1 python train.py",
        "python $X",
        "python \"$X\"",
        "python `x`",
        "python (a)",
        "for i in 1; do x; done",
        "source env",
        "python conf/*.yaml",
        "python {a,b}",
        "python ~/x.py",
        "python x # y",
        "python 'a",
        "a\nb",
        "",
    ] {
        assert_eq!(plain_words(text), None, "{text}");
    }
}

#[test]
fn what_the_caller_must_not_be_led_to_is_told_and_not_read() {
    let (_folder, root) = project();
    std::os::unix::fs::symlink("p/train.py", root.join("../link.py")).unwrap();
    let named = named(
        &root,
        &[
            "python",
            "train.py",
            "../link.py",
            "conf",
            "new.txt",
            "--out=x.json",
            "12",
        ],
    );
    assert_eq!(named.files, ["train.py"]);
    assert_eq!(named.unfollowed, ["../link.py", "conf"]);
    assert_eq!(named.absent, ["python", "new.txt", "x.json"]);
}

proptest! {
    /// Where no shell is needed, a shell splits the text as we do.
    #[test]
    fn words_are_a_shells_words(text in "[a-z./= '\"\\\\-]{1,24}") {
        if let Some(words) = plain_words(&text) {
            let script = format!("for word in {text}; do printf '%s\\0' \"$word\"; done");
            let said = std::process::Command::new("bash").args(["-c", &script]).output().unwrap();
            let by_shell: Vec<String> = String::from_utf8(said.stdout).unwrap().split_terminator('\0').map(str::to_owned).collect();
            prop_assert_eq!(words, by_shell, "{:?}", text);
        }
    }

    #[test]
    fn no_word_is_too_odd(words in proptest::collection::vec(".{0,12}", 0..4)) {
        let (_folder, root) = project();
        let _ = named_by(&root, &json!(words), &ReadSet::default()).unwrap();
    }
}
