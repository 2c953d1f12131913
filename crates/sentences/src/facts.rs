//! One sentence for a fact of any type.

use super::{comparison, figures, gate, metric, results, run};
use figures::AnyFact;

/// The sentence of a fact.
#[must_use]
pub fn said<'a>(fact: impl Into<AnyFact<'a>>) -> String {
    sentence(fact.into())
}

fn sentence(fact: AnyFact<'_>) -> String {
    match fact {
        AnyFact::Fact(fact) => match fact {
            figures::Fact::Said(text) => text.clone(),
            figures::Fact::Run(fact) => run::fact(fact),
            figures::Fact::Comparison(fact) => comparison::fact(fact),
        },
        AnyFact::NoRate(why) => run::no_rate(why),
        AnyFact::NotAssessed(why) => run::not_assessed(why),
        AnyFact::NoTelemetry(why) => run::no_telemetry(why),
        AnyFact::NoEnergy(why) => run::no_energy(why),
        AnyFact::Unchecked(why) => run::unchecked(why),
        AnyFact::NoVerdict(why) => comparison::no_verdict(why),
        AnyFact::Label(label) => comparison::label(label),
        AnyFact::Danger(danger) => comparison::danger(danger),
        AnyFact::Warning(warning) => comparison::warning(warning),
        AnyFact::WhyAbsent(why) => comparison::why_absent(why),
        AnyFact::GroupWorkload(workload) => comparison::workload(workload),
        AnyFact::Basis(basis) => metric::basis(basis),
        AnyFact::NoFigure(why) => metric::no_figure(why),
        AnyFact::GateReason(reason) => gate::reason(reason),
        AnyFact::GateNote(note) => gate::note(note),
    }
}

/// The sentences of facts of one type, in their order.
pub fn each<'a, T: 'a>(facts: impl IntoIterator<Item = &'a T>) -> Vec<String>
where
    &'a T: Into<AnyFact<'a>>,
{
    facts.into_iter().map(said).collect()
}

/// Runs `write`; every fact that it serialises becomes its sentence, as in all files that are
/// published.
pub fn in_words<T>(write: impl FnOnce() -> T) -> T {
    figures::in_words(sentence, || {
        tprimat_results::in_words(results::sentence, write)
    })
}
