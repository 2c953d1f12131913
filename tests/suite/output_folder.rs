//! What stands in the output folder, what replaces it, and what `clean` removes.

use std::fs;

use crate::kept::CELL;
use crate::support::{ONE_RUN, Project, until};

fn built() -> Project {
    let project = Project::new(ONE_RUN);
    project.run(&["build"]).ends_with(0);
    project
}

fn bytes_of(project: &Project, folder: &str) -> Vec<(String, Vec<u8>)> {
    let files = project
        .names_in(folder)
        .into_iter()
        .filter(|name| project.path(folder).join(name).is_file());
    files
        .map(|name| {
            (
                name.clone(),
                fs::read(project.path(folder).join(name)).unwrap(),
            )
        })
        .collect()
}

#[test]
fn a_command_without_figures_replaces_and_removes_nothing() {
    let project = built();
    let published = bytes_of(&project, "output");
    assert!(
        published.iter().any(|(name, _)| name == "compare.png")
            && published.iter().any(|(name, _)| name.starts_with("train_"))
    );
    // Everything is stale now, and nothing may be trained.
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    let ran = project.run(&["build", "--cached-only"]).ends_with(0);
    assert!(
        ran.stderr.contains(
            "nothing was published, since no cell has figures now; output stays as it was"
        ),
        "{ran:?}"
    );
    assert_eq!(bytes_of(&project, "output"), published);
    let again = project
        .run(&["build", "--cached-only", "--json"])
        .ends_with(0);
    assert_eq!(again.json()["ran"], 0, "{again:?}");
    project.run(&["build"]).ends_with(0);
    assert_ne!(bytes_of(&project, "output"), published);
}

/// The figures that stay are not those of the last build, and every file for people says so.
#[test]
fn figures_that_a_refused_build_leaves_are_marked() {
    let project = built();
    let before = project.read("output/compare.txt");
    let trainer = project.read("trainer.sh");
    project.write("trainer.sh", "echo 'ValueError: no <heads>'; exit 1\n");
    for _ in 0..2 {
        let ran = project.run(&["build"]).ends_with(1).stderr;
        assert!(ran.contains("marked as outdated"), "{ran}");
    }
    for name in ["compare.txt", "compare.md", "report.html", "OUTDATED.txt"] {
        let text = project.read(&format!("output/{name}"));
        assert_eq!(text.matches("OUTDATED: ").count(), 1, "{name}");
        assert!(text.contains("ValueError: no "), "{name}");
    }
    assert!(
        project
            .read("output/report.html")
            .contains("no &lt;heads&gt;")
    );
    assert!(project.read("output/compare.txt").ends_with(&before));
    // Figures again: nothing of the mark is left.
    project.write("trainer.sh", &trainer);
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.read("output/compare.txt"), before);
    assert!(!project.path("output/OUTDATED.txt").exists());
    assert!(!project.read("output/report.html").contains("OUTDATED: "));
}

/// A build that goes on writes a page of what is there by then. Where it publishes nothing in the end, the page is that of the
/// tables and pictures beside it again.
#[test]
fn a_page_of_a_refused_build_has_the_figures_of_its_tables() {
    let project = Project::new(&format!(
        "{ONE_RUN}[matrix.axes.seed]\npath = \"training.seed\"\nvalues = [1, 2, 3, 4]\n"
    ));
    project.run(&["build"]).ends_with(0);
    let published = project.read("output/report.html");
    project.write("trainer.sh", "echo 'ValueError: no heads'; exit 1\n");
    project.run(&["build"]).ends_with(1);
    let page = project.read("output/report.html");
    let (_, below) = page.split_once("</strong></p>\n").expect("a notice");
    assert!(published.ends_with(below), "{page}");
    assert!(!project.path("output/.report-before.html").exists());
}

#[test]
fn a_file_of_somebodys_own_with_a_published_name_is_kept() {
    let project = Project::new(ONE_RUN);
    project.write("output/compare.txt", "my notes\n");
    let told = project.run(&["build"]).ends_with(0).stderr;
    assert!(
        told.contains("compare.txt was not written by tprimat")
            && told.contains("earlier/compare.txt"),
        "{told}"
    );
    assert_eq!(project.read("output/earlier/compare.txt"), "my notes\n");
    // So is what somebody edited of what was published, as often as that happens.
    let table = project.read("output/compare.txt");
    for (number, text) in [(2, "edited\n"), (3, "edited again\n")] {
        project
            .write("output/compare.txt", text)
            .run(&["build"])
            .ends_with(0);
        assert_eq!(
            project.read(&format!("output/earlier-{number}/compare.txt")),
            text
        );
        assert_eq!(project.read("output/compare.txt"), table);
    }
    // What tprimat itself wrote for an earlier configuration gives way, also where its list is
    // lost.
    project.remove("output/.published.json");
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    let told = project.run(&["build"]).ends_with(0).stderr;
    assert!(!told.contains("was not written by tprimat"), "{told}");
    assert!(!project.path("output/earlier-4").exists());
}

/// The cache has its bytes, but no build made them.
#[test]
fn a_file_that_was_imported_where_it_lies_is_kept_as_well() {
    let theirs = Project::new(ONE_RUN);
    theirs.run(&["build"]).ends_with(0);
    let published = theirs.read("output/train_cpu_cmd_tiny.json");
    let project = Project::new(ONE_RUN);
    project.write("output/train_cpu_cmd_tiny.json", &published);
    project.write("output/train_nvd_nemo_llama.json", &published);
    project.run(&["import", "output"]).ends_with(0);
    let told = project.run(&["build"]).ends_with(0).stderr;
    assert!(told.contains("earlier/train_cpu_cmd_tiny.json"), "{told}");
    assert!(!told.contains("of an earlier build"), "{told}");
    assert_eq!(
        project.read("output/earlier/train_cpu_cmd_tiny.json"),
        published
    );
}

#[test]
fn two_checkouts_may_publish_into_one_folder_at_once() {
    let projects: Vec<Project> = (0..2).map(|_| Project::new(ONE_RUN)).collect();
    let shared = tempfile::tempdir().unwrap();
    let config = format!(
        "paths:\n  output: {}\n",
        shared.path().join("output").display()
    );
    for project in &projects {
        project.write("config.yaml", &(project.read("config.yaml") + &config));
    }
    for round in 0..8 {
        for project in &projects {
            project.write(
                "trainer.sh",
                &format!("{}# round {round}\n", project.read("trainer.sh")),
            );
        }
        let builds: Vec<_> = projects
            .iter()
            .map(|p| p.tprimat(&["build"]).spawn().unwrap())
            .collect();
        for build in builds {
            crate::support::Ran::from(build.wait_with_output().unwrap()).ends_with(0);
        }
        let names: Vec<String> = fs::read_dir(shared.path().join("output"))
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        assert!(names.iter().any(|name| name == "report.html"), "{names:?}");
        // What the other one wrote is tprimat's as well, and nothing half written stays.
        assert!(
            !names
                .iter()
                .any(|name| name.starts_with("earlier") || name.starts_with(".tmp")),
            "{names:?}"
        );
    }
}

#[test]
fn a_page_without_figures_gives_way_to_the_next() {
    let project = Project::new(ONE_RUN);
    // The trainer's batches have 32 tokens, so it contradicts every other job.
    for (old, new) in [
        ("seq_length: 16", "seq_length: 32"),
        ("seq_length: 32", "seq_length: 64"),
    ] {
        project.edit("config.yaml", old, new);
        project.run(&["build"]).ends_with(1);
        let tokens = 2 * new.rsplit(' ').next().unwrap().parse::<u32>().unwrap();
        let table = project
            .read("output/compare.txt")
            .split_whitespace()
            .collect::<Vec<_>>()
            .join(" ");
        assert!(table.contains(&format!("= {tokens}")), "{table}");
    }
}

#[test]
fn a_cell_without_present_figures_keeps_its_published_file() {
    let project = Project::new(&ONE_RUN.replace("\"tiny\"", "[\"tiny\", \"wide\"]"));
    project.run(&["build"]).ends_with(0);
    let of_wide = project.read("output/train_cpu_cmd_wide.json");
    project.edit(
        "config.yaml",
        "learning_rate: 1.0e-3",
        "learning_rate: 2.0e-3",
    );
    project.run(&["build", "--only", CELL]).ends_with(0);
    assert_eq!(project.read("output/train_cpu_cmd_wide.json"), of_wide);
    assert!(
        project
            .read("output/train_cpu_cmd_tiny.json")
            .contains("0.002")
    );
    // A cell that the matrix no longer has is published no longer.
    project.write("matrix.toml", ONE_RUN);
    project.run(&["build"]).ends_with(0);
    assert!(!project.path("output/train_cpu_cmd_wide.json").exists());
}

/// Each would replace the pages of the other.
#[test]
fn two_matrices_of_one_name_are_refused_before_anything_runs() {
    let project = Project::new(ONE_RUN);
    let of = |name: &str| ONE_RUN.replace("\"one\"", &format!("\"{name}\""));
    project
        .write("pipelines/first.toml", &of("a b"))
        .write("pipelines/second.toml", &of("a b"));
    let refused = |matrix: &str| {
        let error = project.run(&["build", matrix]).ends_with(2).stderr;
        error.split_whitespace().collect::<Vec<_>>().join(" ")
    };
    let error = refused("first");
    for part in ["pipelines/first.toml", "pipelines/second.toml", "`a b`"] {
        assert!(error.contains(part), "{part}: {error}");
    }
    // Other names that are written alike as a folder.
    project.write("pipelines/second.toml", &of("a-b"));
    assert!(refused("second").contains("pipelines/first.toml"));
    assert_eq!(project.launches(), 0);
    project.write("pipelines/second.toml", &of("c"));
    project.run(&["build", "first"]).ends_with(0);
    // The default matrix has the output folder itself, whatever it is called.
    project.write("matrix.toml", &of("c"));
    project.run(&["build", "second"]).ends_with(0);
    project.run(&["build"]).ends_with(0);
}

/// Without the list nothing says what tprimat published, so the file stays; but not unsaid.
#[test]
fn results_of_a_dropped_cell_are_named_where_the_list_was_lost() {
    let both = ONE_RUN.replace("\"tiny\"", "[\"tiny\", \"wide\"]");
    let project = Project::new(&both);
    project.run(&["build"]).ends_with(0);
    project.remove("output/.published.json");
    project.write("matrix.toml", ONE_RUN);
    let told = project.run(&["build"]).ends_with(0).stderr;
    assert!(
        told.contains("train_cpu_cmd_wide.json in ") && told.contains("is of an earlier build"),
        "{told}"
    );
    assert!(project.path("output/train_cpu_cmd_wide.json").exists());
}

#[test]
fn matrices_of_a_project_publish_side_by_side() {
    let project = built();
    let published = bytes_of(&project, "output");
    project.write(
        "pipelines/other.toml",
        &ONE_RUN
            .replace("\"one\"", "\"other\"")
            .replace("\"tiny\"", "\"wide\""),
    );
    let built = project.run(&["build", "other"]).ends_with(0);
    assert!(
        built.stderr.ends_with(
            "results, table and picture: output/other; the page: output/other/report.html\n"
        ),
        "{built:?}"
    );
    assert_eq!(
        bytes_of(&project, "output"),
        published,
        "the default matrix's pages stay"
    );
    assert!(
        project
            .read("output/other/compare.txt")
            .contains("cpu/cmd/wide/single")
    );
    // Nor does a report that is sent there.
    for arguments in [
        &["report", "-o", "output/other"][..],
        &["report", "other", "-o", "output"],
    ] {
        let refused = project.run(arguments).ends_with(2);
        assert!(
            refused
                .stderr
                .contains("holds what was published of the matrix"),
            "{refused:?}"
        );
    }
    // A matrix that got another name takes the files of its old one with it.
    project
        .edit("matrix.toml", "name = \"one\"", "name = \"two\"")
        .edit("matrix.toml", "\"tiny\"", "\"wide\"");
    project.run(&["build"]).ends_with(0);
    assert!(
        !project.path("output/train_cpu_cmd_tiny.json").exists()
            && project.path("output/train_cpu_cmd_wide.json").exists()
    );
}

#[test]
fn cells_whose_names_are_written_alike_have_files_of_their_own() {
    let models = r#"["tiny", "a;b", "a-b"]"#;
    let project = Project::new(&ONE_RUN.replace("\"tiny\"", models));
    project.edit(
        "config.yaml",
        "  wide: {",
        "  \"a;b\": { <<: *tiny, ffn_hidden_size: 24 }\n  a-b: { <<: *tiny, ffn_hidden_size: 40 }\n  wide: {",
    );
    let built = project.run(&["build"]);
    if built.code == Some(2) {
        // A name that needs no file of its own is refused before.
        assert!(built.stderr.contains("a;b"), "{built:?}");
        return;
    }
    let files = project
        .names_in("output")
        .into_iter()
        .filter(|name| name.starts_with("train_"))
        .count();
    assert_eq!(files, 3);
}

#[test]
fn clean_removes_what_was_published_and_nothing_else() {
    let project = built();
    project
        .write("output/compare.xlsx", "mine")
        .write("output/train_mine.json", "mine")
        .write("output/compare.md", "my words");
    let cleaned = project.run(&["cache", "clean"]).ends_with(0);
    assert!(
        cleaned
            .stderr
            .contains("output/compare.md: it was changed after tprimat published it"),
        "{cleaned:?}"
    );
    assert_eq!(
        project.names_in("output"),
        ["compare.md", "compare.xlsx", "train_mine.json"]
    );
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 1, "measurements are kept");
    // A list that came with a repository names nothing outside of its folder.
    project.write("victim", "").write(
        "output/.published.json",
        &format!(
            r#"{{"m":{{"../victim":"{0}","{1}":"{0}"}}}}"#,
            blake3::hash(b""),
            project.path("victim").display()
        ),
    );
    project.run(&["cache", "clean"]).ends_with(0);
    project.run(&["build"]).ends_with(0);
    assert!(project.path("victim").exists());
}

#[test]
fn clean_removes_only_a_cache() {
    let project = built();
    project.write("precious/objects/thesis.tex", "years").write(
        "precious/CACHEDIR.TAG",
        "Signature: 8a477f597d28d172789f06886806bc55\n",
    );
    let config = project.read("config.yaml");
    project.write(
        "config.yaml",
        &format!("{config}paths: {{ cache: precious }}\n"),
    );
    let refused = project
        .run(&["cache", "clean", "--all", "--yes"])
        .ends_with(2);
    assert!(
        refused.stderr.contains("is not a cache of tprimat"),
        "{refused:?}"
    );
    assert!(
        project.path("precious/objects/thesis.tex").exists()
            && project.path("output/compare.txt").exists()
    );
    project.write("config.yaml", &config);
    let cleaned = project
        .run(&["cache", "clean", "--all", "--yes"])
        .ends_with(0);
    assert!(
        cleaned.stderr.contains("removed 1 run from "),
        "{cleaned:?}"
    );
    assert!(!project.path("cache/objects").exists());
}

#[test]
fn clean_is_refused_while_a_build_runs() {
    let project = Project::new(ONE_RUN);
    project.edit(
        "trainer.sh",
        "for step in",
        "until [[ -e $TPRIMAT_PROJECT_DIR/go ]]; do sleep 0.01; done\nfor step in",
    );
    let mut build = project.tprimat(&["build"]).spawn().unwrap();
    until("the trainer starts", || project.launches() == 1);
    for arguments in [
        &["cache", "clean"][..],
        &["cache", "clean", "--all", "--yes"],
    ] {
        let refused = project.run(arguments).ends_with(2);
        assert!(
            refused.stderr.contains("a build is using the cache"),
            "{refused:?}"
        );
    }
    project.write("go", "");
    assert!(build.wait().unwrap().success());
    project
        .run(&["cache", "clean", "--all", "--yes"])
        .ends_with(0);
    assert!(
        !project.path("cache/objects").exists() && !project.path("output/compare.txt").exists()
    );
}

#[test]
fn a_second_matrix_file_that_moves_the_results_of_the_first_is_told() {
    let project = Project::new(ONE_RUN);
    let matrix = project.read("matrix.toml");
    project
        .remove("matrix.toml")
        .write("pipelines/mine.toml", &matrix);
    project.run(&["build"]).ends_with(0);
    assert!(project.path("output/compare.json").is_file());
    let other = matrix.replace("\"one\"", "\"other\"");
    project.write("pipelines/other.toml", &other);
    let moved = "`one` is not the default matrix any more and publishes in output/one";
    let told = |ran: crate::support::Ran| {
        let words = ran.ends_with(0).stderr;
        let words = words.split_whitespace().collect::<Vec<_>>().join(" ");
        words.contains(moved)
    };
    assert!(told(project.run(&["build", "mine"])));
    assert!(project.path("output/one/compare.json").is_file());
    assert!(
        !told(project.run(&["build", "other"])),
        "it was never elsewhere"
    );
    project.run(&["cache", "clean", "--yes"]).ends_with(0);
    assert!(!told(project.run(&["build", "mine"])));
    assert_eq!(project.launches(), 1);
}

/// File systems take names of 255 bytes.
#[test]
fn cells_whose_names_are_longer_than_a_file_name_may_be_are_published() {
    let project = Project::new(ONE_RUN);
    let mut matrix = ONE_RUN.to_owned();
    let long = "a-value-of-many-words-that-says-how-it-is-done".repeat(3);
    for axis in ["first_of_two_axes", "second_of_two_axes"] {
        matrix += &format!(
            "[matrix.axes.{axis}]\npath = \"frameworks.cmd.{axis}\"\nvalues = [\"{long}\", \"no-{long}\"]\n"
        );
    }
    let name = "a-matrix-with-a-name-".repeat(15);
    let matrix = matrix.replace("name = \"one\"", &format!("name = \"{name}\""));
    project.write("pipelines/long.toml", &matrix);
    project.run(&["check", "long"]).ends_with(0);
    project.run(&["build", "long"]).ends_with(0);
    let folders = project.names_in("output");
    let [folder] = &folders[..] else {
        panic!("{folders:?}")
    };
    let files = project.names_in(&format!("output/{folder}"));
    let cells = files.iter().filter(|name| name.starts_with("train_"));
    assert_eq!(cells.count(), 4, "{files:?}");
    assert!(files.contains(&"compare.json".to_owned()), "{files:?}");
    project.run(&["report", "long"]).ends_with(0);
    let again = project.run(&["build", "long"]).ends_with(0);
    assert!(again.stderr.contains("nothing to do"), "{again:?}");
    // Names of an ordinary length stay as they were.
    project.run(&["build"]).ends_with(0);
    assert!(project.path("output/train_cpu_cmd_tiny.json").is_file());
}

/// As on a full disk, where the error is another one (exit code 1): the page can be written, and the picture cannot.
#[test]
fn figures_that_cannot_be_published_are_shown() {
    let project = Project::new(ONE_RUN);
    project.write("output/compare.png/taken", "");
    let built = project.run(&["build"]).ends_with(2);
    assert!(built.stdout.contains("tokens/s"), "{built:?}");
    let last = built
        .stderr
        .trim_end()
        .lines()
        .next_back()
        .unwrap_or_default();
    assert!(last.contains("compare.png"), "{}", built.stderr);
}
