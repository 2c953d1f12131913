//! No output relates cells of two workloads: pictures, tables, pages and files, read as a person reads them.

use super::guard::{files_in, holds_no_ratio, unescaped};
use crate::support::{ONE_RUN, Project};
use serde_json::{Value, json};

const BATCH_2: &str = "cpu/cmd/tiny/single@batch=2";

const BATCH_16: &str = "cpu/cmd/tiny/single@batch=16";

const LABEL: &str = "across global_batch_size: 16, not 2";

/// Two cells of one matrix, of batches 2 and 16 at rates that are apart by 2.62; with losses,
/// memory and prices, so that every picture that this host can fill is drawn.
fn two_batches() -> Project {
    let axis =
        "\n[matrix.axes.batch]\npath = \"training.data.global_batch_size\"\nvalues = [2, 16]\n";
    let project = Project::new(&(ONE_RUN.replace("repeats = 1", "repeats = 3") + axis));
    project.edit(
        "config.yaml",
        "benchmarking:\n",
        "benchmarking:\n  enhanced_metrics: { cloud_costs: { cpu: { per_gpu_hour: 1.00, currency: EUR, source: made up } } }\n",
    );
    // 32 tokens in 0.0262 s, 256 in 0.08 s; a little more from run to run.
    let step = "\"step_time_seconds\":0.0'$(( $batch == 2 ? 2620 : 8000 ))$(( $(wc -l < \"$TPRIMAT_PROJECT_DIR/launches\") % 5 + step % 3 ))',\"learning_rate\":'${rates[step]}',\"memory_bytes\":'$((batch * 1000000))',\"memory_kind\":\"peak_rss\",\"memory_source\":\"proc\",";
    project.edit("trainer.sh", "\"step_time_seconds\":0.0'$seed$step',", step);
    project.edit(
        "trainer.sh",
        "\"tokens\":32",
        "\"tokens\":'$((batch * 16))'",
    );
    project.edit("trainer.sh", "seed=$(job seed)\n", "seed=$(job seed)\nbatch=$(job global_batch_size)\nrates=(0 0.0005 0.001 0.000868198 0.00055 0.000231802 0.0001)\n");
    project.run(&["build"]).ends_with(0);
    assert_eq!(project.launches(), 6);
    project
}

/// How far down they stand, and what they say.
type Words = (i64, String);

/// A picture's words with how far down they stand, and its boxes: top and width.
fn drawn(svg: &str) -> (Vec<Words>, Vec<(i64, i64)>) {
    let number = |tag: &str, name: &str| -> i64 {
        let (_, rest) = tag
            .split_once(&format!(" {name}=\""))
            .unwrap_or_else(|| panic!("{name}: {tag}"));
        rest.split('"').next().unwrap().parse().unwrap()
    };
    let words = svg.split("<text ").skip(1).map(|text| {
        let (tag, rest) = text.split_once('>').unwrap();
        (
            number(&format!(" {tag}"), "y"),
            rest.split("</text>").next().unwrap().trim().to_owned(),
        )
    });
    let boxes = svg.split("<rect ").skip(1).map(|text| {
        let tag = format!(" {}", text.split('>').next().unwrap());
        (
            tag.contains("fill=\"#FFFFFF\""),
            number(&tag, "y"),
            number(&tag, "width"),
        )
    });
    let boxes = boxes
        .filter(|(is_paper, ..)| !is_paper)
        .map(|(_, y, width)| (y, width))
        .collect();
    (words.collect(), boxes)
}

/// In a picture each workload has panels of its own: below the title of one, down to the next
/// title, stands no other's cell; and no two bars of different panels are drawn to one scale.
#[track_caller]
fn is_drawn_apart(name: &str, svg: &str, titles: &[String; 2]) {
    let (words, boxes) = drawn(svg);
    let mut panels: Vec<(i64, usize)> = words
        .iter()
        .filter_map(|(y, text)| Some((*y, titles.iter().position(|title| title == text)?)))
        .collect();
    panels.sort_unstable();
    let panel_of = |y: i64| {
        panels
            .iter()
            .rev()
            .find(|(top, _)| *top <= y)
            .map(|(_, group)| *group)
    };
    let mut seen = [0; 2];
    for (y, text) in &words {
        // Both cells are called by what their names have that the title does not say.
        if text == "cmd" {
            seen[panel_of(*y).expect("a cell stands below a title")] += 1;
        }
        // The rates, 1,221 and 3,200 tokens/s, tell whose they are.
        if let Some((rate, _)) = text.split_once(" (").filter(|_| text.contains("n = ")) {
            let rate: f64 = rate.replace(',', "").parse().unwrap();
            let group = usize::from(rate > 2000.0);
            assert_eq!(
                panel_of(*y),
                Some(group),
                "{name}: `{text}` is not below its own title: {words:?}"
            );
        }
    }
    assert!(
        seen.iter().all(|n| *n > 0),
        "{name} shows {seen:?}: {words:?}"
    );
    let longest = |group| {
        boxes
            .iter()
            .filter(|(y, _)| panel_of(*y) == Some(group))
            .map(|(_, width)| *width)
            .max()
    };
    if let (Some(a), Some(b)) = (longest(0), longest(1)) {
        let ratio = b as f64 / a as f64;
        assert!(
            (ratio - 2.62).abs() > 0.05,
            "{name} draws both to one scale: {a} and {b} pixels"
        );
    }
}

/// No table of any text puts the two next to each other. A table is a run of lines that begin
/// alike.
#[track_caller]
fn is_told_apart(name: &str, text: &str) {
    holds_no_ratio(name, text);
    let is_table = |line: &str| line.starts_with(['│', '|', '├', '╭', '╰']);
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    for table in lines.chunk_by(|a, b| is_table(a) && is_table(b) && !b.starts_with('╭')) {
        let table = table.join("\n");
        let both = [BATCH_2, BATCH_16].iter().all(|cell| table.contains(cell));
        assert!(
            !(is_table(&table) && both),
            "{name} has both in one table:\n{table}"
        );
    }
}

/// The page's tables of figures, and its pictures.
#[track_caller]
fn is_page_apart(name: &str, page: &str, titles: &[String; 2]) {
    let page = page.replace("<wbr>", "");
    for table in page.split("<table class=\"figures").skip(1) {
        let table = table.split("</table>").next().unwrap();
        assert!(
            ![BATCH_2, BATCH_16].iter().all(|cell| table.contains(cell)),
            "{name}: both in one table: {table}"
        );
    }
    let pictures: Vec<&str> = page
        .split("<svg")
        .skip(1)
        .filter_map(|svg| svg.split("</svg>").next())
        .collect();
    assert!(pictures.len() > 4, "{name}: {} pictures", pictures.len());
    pictures
        .into_iter()
        .for_each(|svg| is_drawn_apart(name, svg, titles));
}

const PICTURES: [&str; 6] = [
    "compare",
    "plot_cost",
    "plot_loss",
    "plot_memory",
    "plot_step_time",
    "plot_throughput",
];

/// Every file of a report, of whatever kind.
#[track_caller]
fn are_apart(folder: &str, files: &[(String, Vec<u8>)], titles: &[String; 2]) {
    let mut pictures = Vec::new();
    for (file, bytes) in files {
        let text = String::from_utf8_lossy(bytes);
        let name = format!("{folder}/{file}");
        match file.rsplit('.').next().unwrap() {
            "svg" => {
                is_drawn_apart(&name, &text, titles);
                pictures.push(file.strip_suffix(".svg").unwrap());
            }
            "txt" | "md" | "csv" => is_told_apart(&name, &text),
            "html" => is_page_apart(&name, &text, titles),
            "json" if file == "compare.json" => {
                let comparison: Value = serde_json::from_slice(bytes).unwrap();
                assert_eq!(comparison["speedups"], json!([]), "{name}");
            }
            // One cell each.
            "json" => assert!(file.starts_with("train_"), "{name}: which output is this?"),
            "png" => assert!(
                files
                    .iter()
                    .any(|(f, _)| *f == file.replace(".png", ".svg")),
                "{name} is no picture's"
            ),
            _ => panic!("{name}: an output that no oracle knows"),
        }
    }
    assert_eq!(pictures, PICTURES, "{folder}");
    assert_eq!(
        files
            .iter()
            .filter(|(f, _)| f.starts_with("train_"))
            .count(),
        2,
        "{folder}"
    );
}

#[test]
fn no_output_relates_two_workloads_unless_it_is_asked_to() {
    let project = two_batches();
    let comparison: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    let title = |i: usize| {
        format!(
            "tiny: {}",
            comparison["groups"][i]["workload"].as_str().unwrap()
        )
    };
    let titles = [title(0), title(1)];
    assert_ne!(titles[0], titles[1]);
    let published = || files_in(&project, "output");
    // A build's files and a report's are the same, so both are looked at as one.
    let built = published();
    project.run(&["report"]).ends_with(0);
    assert_eq!(
        built.iter().map(|f| &f.0).collect::<Vec<_>>(),
        published().iter().map(|f| &f.0).collect::<Vec<_>>()
    );
    are_apart("output", &built, &titles);
    // Two cells that were named meet the same guard, and the exit code of `compare`.
    let pair = ["report", BATCH_2, BATCH_16];
    project
        .run(&[&pair[..], &["-o", "pair"]].concat())
        .ends_with(1);
    are_apart("pair", &files_in(&project, "pair"), &titles);
    project
        .run(&[&pair[..], &["-o", "pair.html", "--across", "seq_length"]].concat())
        .ends_with(1);
    is_page_apart("pair.html", &project.read("pair.html"), &titles);
    for arguments in [
        &["compare"][..],
        &["compare", "--details"],
        &["compare", BATCH_2, BATCH_16],
        &["compare", "--baseline", BATCH_16],
        &["compare", "--format", "markdown"],
        &["compare", "--format", "csv"],
        &["compare", "--across", "seq_length"],
        &["show", BATCH_2],
        &["show", BATCH_16],
    ] {
        is_told_apart(&arguments.join(" "), &project.run(arguments).stdout);
    }
    project.run(&["report", "-o", "page.html"]).ends_with(0);
    is_page_apart("page.html", &project.read("page.html"), &titles);
    // What one workload measured is not a baseline of the other.
    project
        .run(&["gate", "--write", "b.json", "--only", BATCH_2])
        .ends_with(0);
    project.write("b.json", &project.read("b.json").replace(BATCH_2, BATCH_16));
    let gated = project.run(&[
        "gate",
        "--baseline",
        "b.json",
        "--only",
        BATCH_16,
        "--markdown",
        "g.md",
        "--junit",
        "g.xml",
    ]);
    let gated = gated.ends_with(3).stdout;
    for (name, text) in [
        ("gate", gated),
        ("g.md", project.read("g.md")),
        ("g.xml", project.read("g.xml")),
    ] {
        holds_no_ratio(name, &text);
        assert!(
            text.replace("&#95;", "_")
                .contains("global_batch_size: 16, not 2"),
            "{name}: {text}"
        );
    }

    // Asked for: everything that puts one beside the other says across what.
    let across = ["--across", "global_batch_size"];
    let asked = |arguments: &[&str]| {
        project
            .run(&[arguments, &across].concat())
            .ends_with(0)
            .stdout
    };
    for arguments in [
        &["compare"][..],
        &["compare", "--details"],
        &["compare", BATCH_2, BATCH_16],
        &["compare", "--format", "markdown"],
        &["compare", "--format", "csv"],
        &["compare", "--json"],
    ] {
        let text = unescaped(&asked(arguments));
        assert!(text.contains(LABEL), "{arguments:?}: {text}");
    }
    asked(&["report", "-o", "page.html"]);
    asked(&["report"]);
    asked(&["report", BATCH_2, BATCH_16, "-o", "pair"]);
    let mut labelled = published();
    labelled.push((
        "page.html".to_owned(),
        project.read("page.html").into_bytes(),
    ));
    let pair = files_in(&project, "pair");
    assert_eq!(pair.len(), labelled.len() - 1);
    labelled.extend(
        pair.into_iter()
            .filter(|(file, _)| !file.starts_with("train_")),
    );
    for (file, bytes) in labelled
        .iter()
        .filter(|(f, _)| !f.ends_with(".png") && !f.starts_with("train_"))
    {
        let text = unescaped(&String::from_utf8_lossy(bytes));
        assert!(
            text.contains(LABEL),
            "{file} crosses workloads without a word: {text}"
        );
        for svg in text
            .split("<svg")
            .skip(1)
            .filter_map(|svg| svg.split("</svg>").next())
        {
            assert!(
                svg.contains(LABEL),
                "{file}: a picture crosses workloads without a word: {svg}"
            );
        }
        // Nor is one of them shown under the title of the other.
        assert!(
            titles
                .iter()
                .all(|title| !text.contains(&format!("{title} "))),
            "{file}: {titles:?}: {text}"
        );
    }
    let crossed: Value = serde_json::from_str(&project.read("output/compare.json")).unwrap();
    assert_eq!(
        crossed["groups"][0]["workload"],
        "fp32, sequence 16, global batch 2/16, 1 device, across global_batch_size",
        "of the data of a script nothing is known"
    );
    // The oracle of pictures would see them side by side.
    let (words, boxes) = drawn(&project.read("output/plot_throughput.svg"));
    let title = words
        .iter()
        .filter(|(_, text)| text.starts_with("tiny: "))
        .count();
    let widths: Vec<i64> = boxes.iter().map(|(_, width)| *width).collect();
    let ratio = *widths.iter().max().unwrap() as f64 / *widths.iter().min().unwrap() as f64;
    assert!(
        title == 1 && (ratio - 2.62).abs() < 0.05,
        "{title} panels: {widths:?}"
    );
}
