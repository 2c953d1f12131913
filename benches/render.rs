//! Tables, pictures and page of comparisons that were published earlier, in today's words:
//!
//!     cargo run --example render docs/measured/native-h200
//!
//! Figures are those of compare.json, which stays as it is; so are the notes in it. Figures of the
//! example prices that shipped once are left out: they were nobody's prices.
#![allow(clippy::disallowed_methods, reason = "writes documents, not results")]

use std::{env, error::Error, fs, path::Path};

use serde_json::{Value, json};
use tprimat::{
    figures::Comparison,
    job::Sharding,
    report::{self, Meta, Page, PagePicture},
};

fn main() -> Result<(), Box<dyn Error>> {
    for folder in env::args().skip(1) {
        render(Path::new(&folder)).map_err(|e| format!("{folder}: {e}"))?;
    }
    Ok(())
}

fn render(folder: &Path) -> Result<(), Box<dyn Error>> {
    let mut published: Value = serde_json::from_slice(&fs::read(folder.join("compare.json"))?)?;
    today(&mut published);
    let comparison: Comparison = serde_json::from_value(published)?;
    let write = |name: &str, text: &str| {
        // Only what was published there: not every folder has every file.
        let path = folder.join(name);
        if path.exists() {
            fs::write(path, text)
        } else {
            Ok(())
        }
    };
    write("compare.txt", &report::table(&comparison, &Page::file()))?;
    write("compare.md", &report::markdown(&comparison))?;
    write("compare.csv", &report::csv(&comparison))?;
    write("compare_repeats.csv", &report::csv_repeats(&comparison))?;
    let pictures = report::pictures(&comparison)?;
    let drawn: Vec<PagePicture> = pictures
        .drawn
        .iter()
        .map(|p| PagePicture::new(&p.file(), p.svg.clone()))
        .collect();
    let matrix = matrix_of(folder);
    write(
        "report.html",
        &report::html(
            &comparison,
            &drawn,
            &Meta {
                matrix,
                left_out: pictures.left_out,
            },
        )?,
    )?;
    for picture in &pictures.drawn {
        let path = folder.join(format!("{}.png", picture.file()));
        if path.exists() {
            fs::write(path, &picture.png)?;
        }
    }
    Ok(())
}

/// The page is titled after the matrix that made it, and stays so.
fn matrix_of(folder: &Path) -> String {
    let page = fs::read_to_string(folder.join("report.html")).unwrap_or_default();
    let title = page
        .split_once("<title>")
        .and_then(|(_, rest)| rest.split_once(": comparison</title>"));
    title.map_or_else(
        || {
            folder
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned()
        },
        |(matrix, _)| matrix.to_owned(),
    )
}

/// Puts what earlier versions wrote in another form into today's.
fn today(comparison: &mut Value) {
    fn list<'a>(value: &'a mut Value, name: &str) -> impl Iterator<Item = &'a mut Value> {
        value
            .get_mut(name)
            .and_then(Value::as_array_mut)
            .into_iter()
            .flatten()
    }
    // Sentences on what tables have by themselves.
    let is_of_table = |note: &Value| {
        let text = note.as_str().unwrap_or_default();
        [" differs from ", " ran in different environments"]
            .iter()
            .any(|words| text.contains(words))
    };
    without(comparison, "notes", is_of_table);
    for note in list(comparison, "notes") {
        if let Some(text) = note.as_str().map(|text| text.trim_end_matches('.')) {
            *note = match text.split_once(": ") {
                Some((cells, text)) if cells.contains('/') => {
                    json!({ "kind": "remark", "cell": cells, "text": text })
                }
                _ => json!({ "kind": "remark", "text": text }),
            };
        }
        let Some(mut text) = note["text"].as_str().map(str::to_owned) else {
            continue;
        };
        for (a, b) in same_sharding() {
            text = text.replace(&format!("; sharding: {a}, not {b}"), "");
        }
        note["text"] = text.into();
    }
    for speedup in list(comparison, "speedups") {
        if let Some([low, high]) = speedup
            .get("ci95")
            .and_then(Value::as_array)
            .map(Vec::as_slice)
        {
            let confidence = speedup
                .get("confidence")
                .cloned()
                .unwrap_or_else(|| 0.95.into());
            speedup["interval"] = json!({ "low": low, "high": high, "confidence": confidence });
        }
    }
    // The same way of sharding has a name in each framework.
    let sharding = |value: &Value| value.as_str().and_then(Sharding::named);
    for row in list(comparison, "rows") {
        for field in list(row, "contract").filter(|field| field["field"] == "sharding") {
            field["value"] =
                sharding(&field["value"]).map_or(Value::Null, |sharding| sharding.name().into());
        }
    }
    let is_same = |difference: &Value| {
        difference["field"] == "sharding"
            && sharding(&difference["a"]).is_some()
            && sharding(&difference["a"]) == sharding(&difference["b"])
    };
    without(comparison, "differences", is_same);
    let is_same_label = |label: &Value| {
        same_sharding().any(|(a, b)| label.as_str() == Some(&*format!("sharding: {a}, not {b}")))
    };
    for speedup in list(comparison, "speedups") {
        without(speedup, "labels", is_same_label);
    }
    for absent in list(comparison, "absent") {
        let reason = match absent["reason"].as_str() {
            Some("stale, and not selected: build it first") => {
                "not measured: this build selected other cells"
            }
            Some("stale: build first") => "not measured yet",
            _ => continue,
        };
        absent["reason"] = reason.into();
    }
    // A title of today names the precision.
    let mut precisions: Vec<(u64, String)> = Vec::new();
    for row in list(comparison, "rows") {
        let (Some(group), Some(precision)) = (row["group"].as_u64(), row["precision"].as_str())
        else {
            continue;
        };
        let found = (group, precision.to_owned());
        if !precisions.contains(&found) {
            precisions.push(found);
        }
    }
    for (at, group) in (0..).zip(list(comparison, "groups")) {
        let of_group: Vec<&str> = precisions
            .iter()
            .filter(|(of, _)| *of == at)
            .map(|(_, name)| name.as_str())
            .collect();
        let title = group["workload"].as_str().unwrap_or_default();
        if title.starts_with("sequence ") && !of_group.is_empty() {
            group["workload"] = format!("{}, {title}", of_group.join("/")).into();
        }
    }
    let is_example = |figure: &Value| {
        figure["basis"]
            .as_str()
            .is_some_and(|basis| basis.contains("illustrative"))
    };
    let mut had_example_prices = false;
    for row in list(comparison, "rows") {
        for metric in list(row, "metrics").filter(|metric| is_example(&metric["figure"])) {
            metric["figure"] = json!({ "status": "absent", "reason": "no price is set" });
            had_example_prices = true;
        }
    }
    for speedup in list(comparison, "speedups").filter(|_| had_example_prices) {
        speedup["cost_ratio"] = json!({ "status": "absent", "reason": "no price is set" });
        speedup
            .as_object_mut()
            .map(|speedup| speedup.remove("prices"));
    }
}

/// Removes what is to be left out of a list.
fn without(value: &mut Value, name: &str, is_out: impl Fn(&Value) -> bool) {
    if let Some(list) = value.get_mut(name).and_then(Value::as_array_mut) {
        list.retain(|entry| !is_out(entry));
    }
}

/// Pairs of names of one way of sharding.
fn same_sharding() -> impl Iterator<Item = (&'static str, &'static str)> {
    Sharding::names().flat_map(|a| {
        let others = Sharding::named(a).map_or(&[][..], Sharding::own_names);
        others.iter().map(move |b| (a, *b))
    })
}
