//! Sentences on what one log shows: the arithmetic behind a setting, what is odd about a run, and
//! two values that differ.

use tprimat_results::{
    Arithmetic, AskedSchedule, Convention, FieldAttestation, FieldDifference, FirstLoss,
    FlopsCount, LoggedRates, NoSamples, Oddity, Product, ResultFact, ShapeChange, StepTimeSource,
    TokensFrom, Withheld, settings::show,
};
use tprimat_words::plain::counted;

use super::words::step_time;

pub(super) fn sentence(fact: ResultFact<'_>) -> String {
    match fact {
        ResultFact::Arithmetic(fact) => arithmetic(fact),
        ResultFact::Oddity(fact) => oddity(fact),
        ResultFact::Withheld(fact) => withheld(fact),
        ResultFact::StepTimeSource(fact) => step_time_source(fact),
        ResultFact::NoSamples(fact) => no_samples(fact),
    }
}

/// How a value follows from what the log says: a calculation that the reader can do again.
#[must_use]
pub fn arithmetic(fact: &Arithmetic) -> String {
    match fact {
        Arithmetic::Said(text) => text.clone(),
        Arithmetic::BatchProduct {
            micro,
            ranks,
            accumulation,
            product,
        } => format!("{micro} × {ranks} × {accumulation} = {product}"),
        Arithmetic::TokensOfStep {
            claimed: Product { batch, length },
            step,
            tokens,
        } => format!(
            "{batch} × {length} = {}, and step {step} has {tokens} tokens",
            batch.saturating_mul(*length)
        ),
        Arithmetic::Restated {
            setting,
            first,
            later,
        } => format!(
            "{setting} is {} at first, later {}",
            show(Some(first)),
            show(Some(later))
        ),
        Arithmetic::DeviceCount { stated, counted } => {
            format!("num_gpus is {stated}, but the log lists the device {counted} times")
        }
        Arithmetic::LineEvery { last, every } => {
            format!("the last line is of step {last}, and there is one every {every} steps")
        }
        Arithmetic::StepsLost {
            read,
            asked,
            lines,
            first,
        } => {
            let others = match read {
                0 => "no training step was found in the others".to_owned(),
                read => format!("the others have {}", counted(*read as usize, "step")),
            };
            format!(
                "{} of the log cannot be read (the first is line {first}), and {others}; {asked} were asked for",
                counted(*lines as usize, "line")
            )
        }
        Arithmetic::SamplesPerStep {
            first: (samples, step),
            last: (last_samples, last_step),
            per_step,
        } => format!(
            "{} samples after step {step}, {} after step {last_step}: {} a step",
            thousands(*samples as f64),
            thousands(*last_samples as f64),
            thousands(per_step.0)
        ),
        Arithmetic::TokensPerStep {
            from,
            tokens,
            known,
            agrees,
            others,
        } => tokens_per_step(from, tokens.0, *known, *agrees, others),
        Arithmetic::MeanOfSteps {
            published,
            skipped,
            last,
        } => format!(
            "{:.3} s is the mean of steps {} to {last}: {skipped} skipped",
            published.0,
            skipped + 1
        ),
        Arithmetic::MeanOfNoSteps { published } => format!(
            "the published mean of {:.3} s matches no average of its steps, however many first steps are left out",
            published.0
        ),
        Arithmetic::FlopsPerToken {
            flops,
            tokens_per_second,
            per_token,
            convention: of,
            convention_per_token,
            fits,
        } => format!(
            "{:.1} TFLOP/s ÷ {} tokens/s = {:.4} GFLOP per token; {} {}: {:.4} GFLOP",
            flops.0 / 1e12,
            thousands(tokens_per_second.0),
            per_token.0 / 1e9,
            if *fits {
                "that is"
            } else {
                "no convention fits, the nearest is"
            },
            convention(*of),
            convention_per_token.0 / 1e9
        ),
        Arithmetic::FirstLoss(first) => first_loss(first),
        Arithmetic::LearningRates(rates) => logged(rates),
        Arithmetic::ConstantLearningRate { rate, asked: of } => format!(
            "the learning rate in the log is {:.3e} at every step; the schedule that was asked for has {}",
            rate.0,
            asked(of)
        ),
        Arithmetic::LearningRatesThatFit {
            fit,
            all,
            asked: of,
            logged: rates,
        } => format!(
            "{fit} of {all} logged rates fit the schedule that was asked for, {}; {}",
            asked(of),
            logged(rates)
        ),
    }
}

fn tokens_per_step(
    from: &TokensFrom,
    tokens: f64,
    known: Option<Product>,
    agrees: bool,
    others: &[Product],
) -> String {
    let tokens = thousands(tokens);
    let said = match from {
        TokensFrom::Lines {
            per_gpu,
            gpus,
            seconds,
        } => format!(
            "{} tokens/s per device × {gpus} × {:.3} s = {tokens} tokens per step",
            thousands(per_gpu.0),
            seconds.0
        ),
        TokensFrom::Published {
            rate,
            seconds,
            rate_of_labels,
        } => {
            let labels = rate_of_labels.map_or_else(String::new, |label| {
                format!(" (the labels would give {} tokens/s)", thousands(label.0))
            });
            let rate = thousands(rate.0);
            format!(
                "{rate} tokens/s × {:.3} s = {tokens} tokens per step{labels}",
                seconds.0
            )
        }
    };
    let Some(known) = known else {
        return said;
    };
    let product = |of: &Product| {
        let tokens = thousands(of.tokens());
        format!("{tokens} = {} × {}", of.batch, of.length)
    };
    if agrees {
        return format!("{said} ≈ {}", product(&known));
    }
    let others = if others.is_empty() {
        String::new()
    } else {
        let others: Vec<String> = others.iter().map(product).collect();
        format!(" ≈ {}", others.join(" or "))
    };
    format!(
        "{said}{others}, not {} × {} = {}",
        known.batch,
        known.length,
        thousands(known.tokens())
    )
}

fn convention(convention: Convention) -> String {
    let name = match convention.count {
        FlopsCount::Parameters => "6·N",
        FlopsCount::ParametersButEmbedding => "6·(N − N_embedding)",
        FlopsCount::ParametersFullAttention => "6·N + 12·L·H·Q·T, full attention",
        FlopsCount::ParametersButEmbeddingFullAttention => {
            "6·(N − N_embedding) + 12·L·H·Q·T, full attention"
        }
        FlopsCount::ParametersHalfAttention => "6·N + 6·L·H·Q·T, causal-halved",
        FlopsCount::ParametersButEmbeddingHalfAttention => {
            "6·(N − N_embedding) + 6·L·H·Q·T, causal-halved"
        }
        FlopsCount::PaddedFullAttention => {
            "matrix products with the padded vocabulary, full attention"
        }
        FlopsCount::PaddedHalfAttention => {
            "matrix products with the padded vocabulary, causal-halved"
        }
    };
    let again = if convention.recomputed {
        ", with recomputation (× 4/3)"
    } else {
        ""
    };
    format!("{name}{again}")
}

fn first_loss(first: &FirstLoss) -> String {
    let FirstLoss {
        loss,
        step,
        vocabulary,
        guess,
    } = first;
    format!(
        "loss {:.3} at step {step}; ln({vocabulary}) = {:.3}",
        loss.0, guess.0
    )
}

fn logged(rates: &LoggedRates) -> String {
    let LoggedRates { first, peak, last } = rates;
    format!(
        "logged: {:.3e} at step {}, at most {:.3e} at step {}, {:.3e} at step {}",
        first.rate.0, first.step, peak.rate.0, peak.step, last.rate.0, last.step
    )
}

fn asked(schedule: &AskedSchedule) -> String {
    format!(
        "{:.3e} at its peak ({} of warm-up, then a cosine to {:.3e})",
        schedule.peak.0,
        counted(schedule.warmup_steps as usize, "step"),
        schedule.least.0
    )
}

/// What is odd about a run.
#[must_use]
pub fn oddity(fact: &Oddity) -> String {
    match fact {
        Oddity::Said(text) => text.clone(),
        Oddity::SlowFirstSteps {
            first,
            last,
            low,
            high,
            median,
        } => {
            let (steps, took) = if first == last {
                (format!("step {first} takes"), step_time(high.0))
            } else {
                (
                    format!("steps {first} to {last} take"),
                    format!("{} to {}", step_time(low.0), step_time(high.0)),
                )
            };
            format!(
                "{steps} {took}; the median of the rest is {}",
                step_time(median.0)
            )
        }
        Oddity::LevelShift {
            step,
            before,
            after,
        } => format!(
            "near step {step} the median step time changes from {} to {} ({:+.1} %)",
            step_time(before.0),
            step_time(after.0),
            (after.0 / before.0 - 1.0) * 100.0
        ),
        Oddity::LastStep {
            step,
            seconds,
            median,
        } => format!(
            "the last step, {step}, takes {}; the median is {}",
            step_time(seconds.0),
            step_time(median.0)
        ),
        Oddity::LossCollapsed { step, loss } => format!(
            "the loss falls to {:.3e} at step {step}: mock or repeated data, or no longer a loss",
            loss.0
        ),
        Oddity::FirstLoss(first) => {
            let why = if first.loss.0 < first.guess.0 {
                "weights that were trained already, another vocabulary, or not a mean over tokens"
            } else {
                "a wide initialisation, another vocabulary, or a sum"
            };
            format!("{}: {why}", first_loss(first))
        }
        Oddity::RateDisagrees(fact) => arithmetic(fact),
        Oddity::AdamForAdamw => "the trainer says adam and adamw was asked for: in Megatron and Apex, adam is AdamW; elsewhere \
            the weight decay differs"
            .to_owned(),
        Oddity::ShapeOfLog { model, changes } => format!(
            "the log states a shape of its own, which is used instead of config.yaml's `{model}`: {}. To hold it against `{model}`, \
             name the cell: `tprimat import CELL --log FILE`",
            shape_changes(changes)
        ),
        Oddity::EndsEarly { asked, last } => {
            format!("the log says {asked} iterations and ends at {last}")
        }
        Oddity::BatchSizeChanges { first, last } => {
            format!("the global batch size goes from {first} to {last}")
        }
    }
}

pub(super) fn withheld(fact: &Withheld) -> String {
    match fact {
        Withheld::Said(text) => text.clone(),
        Withheld::NotHandedOver(settings) => format!(
            "the recipe does not hand over {}, and the log does not state {}",
            settings.join(", "),
            if settings.len() == 1 { "it" } else { "them" }
        ),
    }
}

pub(super) fn no_samples(fact: &NoSamples) -> String {
    match fact {
        NoSamples::Said(text) => text.clone(),
        NoSamples::NoHeading => "telemetry.jsonl has no heading that this version reads".to_owned(),
        NoSamples::FewerThanTwo => "fewer than two samples were taken".to_owned(),
        NoSamples::GoneFromCache => "telemetry.jsonl is gone from the cache".to_owned(),
    }
}

pub(super) fn step_time_source(fact: &StepTimeSource) -> String {
    match fact {
        StepTimeSource::Said(text) => text.clone(),
        StepTimeSource::TrainersRate => "derived from the trainer's tokens/s".to_owned(),
    }
}

/// What contradicts what, with the numbers. `asked`: who wanted the declared value.
#[must_use]
pub fn field(attestation: &FieldAttestation, asked: &str) -> String {
    let FieldAttestation {
        field,
        declared,
        effective,
        arithmetic: fact,
        ..
    } = attestation;
    match (fact, declared, effective) {
        (Some(fact), ..) => format!("{field}: {}", arithmetic(fact)),
        (None, Some(steps), Some(run)) if field == "steps_run" && *run == 0 => format!(
            "no training step was found in the log ({steps} were asked for); [log] in its recipe.toml says how it is read (docs/recipes.md, \"Log formats\")"
        ),
        (None, Some(steps), Some(run)) if field == "steps_run" => {
            format!("by its log the run came to step {run}; {asked} {steps} steps")
        }
        (None, Some(declared), Some(effective)) => format!(
            "the trainer says {field} {}; {asked} {}",
            show(Some(effective)),
            show(Some(declared))
        ),
        _ => field.clone(),
    }
}

/// `precision: fp8, not bf16`
#[must_use]
pub fn difference(of: &FieldDifference) -> String {
    format!(
        "{}: {}, not {}",
        of.field,
        show(of.a.as_ref()),
        show(of.b.as_ref())
    )
}

/// `vocab_size 151665, not 152064; …`
fn shape_changes(changes: &[ShapeChange]) -> String {
    let each = |change: &ShapeChange| {
        let why = if change.is_quotient {
            " (hidden_size / num_attention_heads)"
        } else {
            ""
        };
        format!(
            "{} {}{why}, not {}",
            change.setting,
            show(Some(&change.own)),
            show(Some(&change.claimed))
        )
    };
    changes.iter().map(each).collect::<Vec<_>>().join("; ")
}

/// `1,048,576`; below ten thousand with what decimals it has.
fn thousands(value: f64) -> String {
    let text = if value.abs() < 1e5 && value.fract().abs() > 0.005 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    };
    let (digits, decimals) = text
        .split_once('.')
        .map_or((text.as_str(), None), |(a, b)| (a, Some(b)));
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0
            && (digits.len() - i).is_multiple_of(3)
            && digit.is_ascii_digit()
            && !out.ends_with('-')
        {
            out.push(',');
        }
        out.push(digit);
    }
    decimals.map_or(out.clone(), |d| format!("{out}.{d}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tprimat_results::{AttestationStatus, RateAt};

    fn product(batch: u64, length: u64) -> Product {
        Product { batch, length }
    }

    fn tokens(known: Option<Product>, agrees: bool, others: Vec<Product>) -> String {
        arithmetic(&Arithmetic::TokensPerStep {
            from: TokensFrom::Lines {
                per_gpu: 2050.0.into(),
                gpus: 1,
                seconds: 0.5.into(),
            },
            tokens: 1025.0.into(),
            known,
            agrees,
            others,
        })
    }

    #[test]
    fn the_arithmetic_can_be_done_again() {
        let known = Some(product(8, 128));
        assert_eq!(
            tokens(known, true, Vec::new()),
            "2,050 tokens/s per device × 1 × 0.500 s = 1,025 tokens per step ≈ 1,024 = 8 × 128"
        );
        let others = vec![product(8, 512), product(32, 128)];
        assert!(tokens(known, false, others).ends_with(
            "tokens per step ≈ 4,096 = 8 × 512 or 4,096 = 32 × 128, not 8 × 128 = 1,024"
        ));
        assert!(tokens(None, true, Vec::new()).ends_with("= 1,025 tokens per step"));
        let at = |rate: f64, step| RateAt {
            rate: rate.into(),
            step,
        };
        let rates = LoggedRates {
            first: at(1.0, 1),
            peak: at(40.0, 40),
            last: at(2.0, 50),
        };
        assert!(
            arithmetic(&Arithmetic::LearningRates(rates)).contains("at most 4.000e1 at step 40")
        );
    }

    #[test]
    fn a_contradiction_is_said_with_both_values() {
        let of = |name: &str, declared: u64, effective: u64| FieldAttestation {
            field: name.to_owned(),
            declared: Some(declared.into()),
            effective: Some(effective.into()),
            status: AttestationStatus::Contradicted,
            arithmetic: None,
        };
        assert_eq!(
            field(&of("seq_length", 128, 256), "the job asked for"),
            "the trainer says seq_length 256; the job asked for 128"
        );
        let none = field(&of("steps_run", 8, 0), "the job asked for");
        assert!(none.starts_with("no training step was found in the log (8 were"));
        assert!(none.contains("Log formats"));
    }
}
