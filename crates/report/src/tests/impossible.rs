//! A rate above what the device can do: no ratio, no interval and no rate in any report.

use tprimat_job::Job;
use tprimat_numbers::figures::{
    Catalogue, CompareSettings, Comparison, Note, NoteKind, Price, compare,
};

use crate::{csv, headline::headlines, html, markdown, stand_ins::*, table};

const H100: Option<(&str, &str)> = Some(("cuda", "NVIDIA H100 80GB HBM3"));
const NVD: &str = "nvd/nemo/llama/maximum_performance";

/// Llama 3.1 8B at 8192 tokens, 128 sequences a step on 8 devices.
fn llama_job() -> Job {
    let mut job = test_job();
    job.model = llama_8b();
    job.data.micro_batch_size = 1;
    job.data.global_batch_size = 128;
    job.data.gradient_accumulation_steps = 16;
    job.data.seq_length = 8192;
    job.parallelism.num_gpus = 8;
    job.parallelism.data_parallel_size = 8;
    job
}

fn catalogue() -> Catalogue {
    let price = Price {
        per_gpu_hour: 3.0,
        currency: "USD".into(),
        source: None,
    };
    let target_loss = [("llama".to_owned(), 2.0)].into();
    Catalogue {
        prices: [("nvd".to_owned(), price)].into(),
        target_loss,
        ..Catalogue::default()
    }
}

#[test]
fn an_impossible_rate_is_compared_with_nothing() {
    let runs = |name: &str, seconds: f64| {
        let steps: Vec<Vec<f64>> = [1.0, 1.01, 0.99]
            .iter()
            .map(|r| vec![seconds * r; 51])
            .collect();
        measured_steps(name, &llama_job(), &steps, H100)
    };
    let (other, slow) = (
        "nvd/mega/llama/maximum_performance",
        "nvd/tran/llama/maximum_performance",
    );
    let of = |first: f64, second: f64| {
        let cells = [runs(NVD, first), runs(other, second), runs(slow, 14.0)];
        compare(&cells, &CompareSettings::default(), &catalogue())
    };
    let fine = of(12.27, 13.0);
    assert_eq!((fine.speedups.len(), fine.rows[1].impossible()), (2, None));
    let one = of(12.27, 5.0);
    assert_eq!(
        one.speedups.iter().map(|s| &*s.a).collect::<Vec<_>>(),
        [slow]
    );
    assert!(
        one.speedups[0].p_value.is_some(),
        "the others are compared as ever"
    );
    let told = |c: &Comparison, words: &str| {
        let is_it = |n: &Note| n.kind == NoteKind::Doubtful && n.reason.text.starts_with(words);
        c.notes.iter().any(is_it)
    };
    let words = format!("not compared with {NVD}: the rate of {other} is impossible: ");
    assert!(told(&one, &words), "{:?}", one.notes);
    assert!(
        headlines(&one)
            .iter()
            .all(|h| h.a != other && h.b.as_deref() != Some(other))
    );

    let base = of(5.0, 12.27);
    assert_eq!((base.speedups.len(), base.groups.len()), (0, 1));
    assert!(
        told(
            &base,
            &format!("not compared with {NVD}: the rate of {NVD} is impossible: ")
        ),
        "{:?}",
        base.notes
    );
    let rate = crate::number(base.rows[0].tokens_per_second_per_gpu.value);
    let page = html(&base, &[], &crate::Meta::default()).unwrap();
    let plain = crate::Page {
        width: 1000,
        ..crate::Page::file()
    };
    for text in [table(&base, &plain), markdown(&base), csv(&base)] {
        assert!(
            text.contains("impossible") && !text.contains('×') && !text.contains(&rate),
            "{rate}: {text}"
        );
    }
    assert_eq!(
        table(&base, &plain)
            .matches("not compared: impossible rate")
            .count(),
        2
    );
    // What a figure is made of may be a product.
    let page = page
        .replace("tokens/s per device × ", "")
        .replace("tokens/s × 86,400 s a day", "");
    let lines: Vec<&str> = page
        .lines()
        .filter(|line| line.contains('×') || line.contains(&rate))
        .collect();
    assert!(
        page.contains("impossible") && lines.is_empty(),
        "{rate}: {lines:#?}"
    );
}
