//! The search itself.

use std::{borrow::Cow, collections::BTreeMap};

use super::{
    Alone, Answer, Arm, Cause, Effect, Found, Limits, Measured, Outcome, PairTold, error_of_one,
};
use crate::results::{Decision, Sequential};

/// The total is measured until its interval reaches at most this part of it to each side.
const PRECISION: f64 = 1.0 / 3.0;

/// Which of `n` differences make the second configuration slower or faster than the first. `measure`
/// runs each of the arms once, in turns, and answers in their order; `None` when the budget is spent.
///
/// # Errors
/// Those of `measure`.
pub fn search<E>(
    n: usize,
    limits: Limits,
    measure: impl FnMut(&[&Arm]) -> Result<Option<Vec<Outcome>>, E>,
) -> Result<Found, E> {
    Search::of(n, limits, None, measure).run(n)
}

/// The same where each difference comes on top of those before it, as commits do: an arm has the first k of
/// the n differences, and no others. `same[k]` is the least number of differences that makes the same
/// configuration as the first k, because a commit may take back another one; it has n + 1 entries.
///
/// # Errors
/// Those of `measure`.
pub fn bisect<E>(
    same: Vec<usize>,
    limits: Limits,
    measure: impl FnMut(&[&Arm]) -> Result<Option<Vec<Outcome>>, E>,
) -> Result<Found, E> {
    let n = same.len().saturating_sub(1);
    Search::of(n, limits, Some(same), measure).run(n)
}

enum Told {
    Noise,
    All,
    /// A cause is among these, and which one is not known.
    Among(Arm),
}

/// Bounds of the logarithm of a ratio of times.
#[derive(Clone, Copy, Debug)]
struct Span {
    low: f64,
    high: f64,
}

impl Span {
    const ANY: Self = Self {
        low: f64::NEG_INFINITY,
        high: f64::INFINITY,
    };
    fn middle(self) -> f64 {
        f64::midpoint(self.low, self.high)
    }
    fn half(self) -> f64 {
        (self.high - self.low) / 2.0
    }
    fn differs(self) -> bool {
        self.low > 0.0 || self.high < 0.0
    }
    fn is_within(self, margin: f64) -> bool {
        self.low > -margin && self.high < margin
    }
    fn is_precise(self) -> bool {
        self.half() <= PRECISION * self.middle().abs()
    }
    fn and(self, other: Self) -> Self {
        let both = Self {
            low: self.low.max(other.low),
            high: self.high.min(other.high),
        };
        // Two that exclude each other cannot both hold; the narrower one is kept.
        match (both.low <= both.high, self.half() <= other.half()) {
            (true, _) => both,
            (false, true) => self,
            (false, false) => other,
        }
    }
    fn plus(self, other: Self) -> Self {
        Self {
            low: self.low + other.low,
            high: self.high + other.high,
        }
    }
    fn effect(self) -> Effect {
        Effect {
            value: self.middle().exp_m1(),
            low: self.low.exp_m1(),
            high: self.high.exp_m1(),
        }
    }
}

/// Where in the candidates the change is.
enum Half {
    First,
    Second,
    Untold,
    Fails,
}

struct Search<M> {
    measure: M,
    limits: Limits,
    /// Logarithms of the second arm's time over the first one's, round by round.
    pairs: BTreeMap<(Arm, Arm), Vec<f64>>,
    fails: BTreeMap<Arm, String>,
    /// The pairs of arms that each question looks at.
    questions: Vec<Vec<(Arm, Arm)>>,
    /// The probability that one interval does not hold the true ratio.
    error: f64,
    /// As `bisect` has it; none where differences are applied in any combination.
    same: Option<Vec<usize>>,
    spent: bool,
    /// The arms of the last round.
    last: Vec<Arm>,
}

impl<E, M: FnMut(&[&Arm]) -> Result<Option<Vec<Outcome>>, E>> Search<M> {
    fn of(n: usize, limits: Limits, same: Option<Vec<usize>>, measure: M) -> Self {
        Self {
            measure,
            limits,
            pairs: BTreeMap::new(),
            fails: BTreeMap::new(),
            questions: Vec::new(),
            error: error_of_one(n),
            same,
            spent: false,
            last: Vec::new(),
        }
    }

    fn run(mut self, n: usize) -> Result<Found, E> {
        let (none, all) = (Arm::new(), (0..n).collect());
        let mut causes = Vec::new();
        let told = match self.same {
            Some(_) => self.links(&none, &all, &mut causes)?,
            None => self.causes(&all, &mut causes)?,
        };
        let total = self.between(&none, &all).map(Span::effect);
        let (answer, among) = match told {
            Told::Noise => (Answer::Noise, Vec::new()),
            Told::All => (Answer::Found, Vec::new()),
            Told::Among(arm) => (Answer::Undecided, arm.into_iter().collect()),
        };
        let more_rounds = self.more_rounds(answer);
        let questions = self.measured();
        let guilty: Arm = causes
            .iter()
            .flat_map(|cause| &cause.differences)
            .copied()
            .collect();
        let cleared = match answer {
            Answer::Undecided => self.cleared(),
            _ => all.clone(),
        };
        let is_cleared = |one: &usize| !guilty.contains(one) && !among.contains(one);
        let cleared: Vec<usize> = cleared.into_iter().filter(is_cleared).collect();
        let mut fails: Vec<(Arm, String)> = self.fails.into_iter().collect();
        if self.same.is_some() {
            causes.sort_by_key(|cause| cause.differences.first().copied());
            // The others come with its last one.
            for (arm, _) in &mut fails {
                *arm = arm.pop_last().into_iter().collect();
            }
        }
        Ok(Found {
            answer,
            total,
            causes,
            among,
            cleared,
            more_rounds,
            is_spent: self.spent,
            fails,
            verdicts: self.questions.len(),
            questions,
        })
    }

    /// Each pair of configurations that a question compared, with the difference as it is known now.
    fn measured(&self) -> Vec<Measured> {
        let mut seen = std::collections::BTreeSet::new();
        let mut all = Vec::new();
        for (at, pairs) in self.questions.iter().enumerate() {
            for (from, to) in pairs {
                let (from, to) = (&*self.one(from), &*self.one(to));
                if from == to || !seen.insert((from.clone(), to.clone())) {
                    continue;
                }
                let direct = self
                    .pairs
                    .get(&(from.min(to).clone(), from.max(to).clone()));
                let test = direct.and_then(|ratios| Sequential::of(ratios));
                let ratio = test.map(|test| {
                    if from < to {
                        test.ratio()
                    } else {
                        1.0 / test.ratio()
                    }
                });
                let told = if self.has_failed(from) || self.has_failed(to) {
                    PairTold::Fails
                } else if self.is_alike(from, to) {
                    PairTold::Alike
                } else if self.span(from, to).differs() {
                    PairTold::Differs
                } else {
                    PairTold::Open
                };
                all.push(Measured {
                    question: at + 1,
                    from: from.iter().copied().collect(),
                    to: to.iter().copied().collect(),
                    rounds: direct.map_or(0, Vec::len),
                    so_far: ratio.map(|ratio| ratio - 1.0),
                    effect: self.between(from, to).map(Span::effect),
                    told,
                });
            }
        }
        all
    }

    /// What makes nothing, together, on top of what it was measured on.
    fn cleared(&self) -> Arm {
        let arms: std::collections::BTreeSet<&Arm> =
            self.pairs.keys().flat_map(|(a, b)| [a, b]).collect();
        let pairs = arms
            .iter()
            .flat_map(|from| arms.iter().map(move |to| (*from, *to)));
        let alike =
            pairs.filter(|(from, to)| from.is_subset(to) && from != to && self.is_alike(from, to));
        alike
            .flat_map(|(from, to)| to.difference(from).copied())
            .collect()
    }

    /// The arm under which a configuration is measured.
    fn one<'a>(&self, arm: &'a Arm) -> Cow<'a, Arm> {
        match self.same.as_ref().map(|same| same[arm.len()]) {
            Some(same) if same < arm.len() => Cow::Owned((0..same).collect()),
            _ => Cow::Borrowed(arm),
        }
    }

    /// The differences between two arms of a chain that move the time.
    fn links(&mut self, low: &Arm, high: &Arm, causes: &mut Vec<Cause>) -> Result<Told, E> {
        self.ask(&[(low, high)], |of| of.is_known(low, high))?;
        if self.is_alike(low, high) {
            return Ok(Told::Noise);
        }
        if !self.span(low, high).differs() {
            return Ok(Told::Among(high.difference(low).copied().collect()));
        }
        let (base, unit) = match self.isolate(low.clone(), high.clone())? {
            Ok(place) => place,
            Err(among) => return Ok(Told::Among(among)),
        };
        let with = union(&base, &unit);
        self.ask(&[(&base, &with)], |of| of.is_known(&base, &with))?;
        causes.push(Cause {
            effect: self.span(&base, &with).effect(),
            alone: unit
                .iter()
                .map(|_| Alone::NotMeasured(String::new()))
                .collect(),
            differences: unit.into_iter().collect(),
        });
        for (from, to) in [(low, &base), (&with, high)] {
            if from != to
                && let Told::Among(among) = self.links(from, to, causes)?
            {
                return Ok(Told::Among(among));
            }
        }
        Ok(Told::All)
    }

    fn causes(&mut self, all: &Arm, causes: &mut Vec<Cause>) -> Result<Told, E> {
        let none = Arm::new();
        self.ask(&[(&none, all)], |of| of.is_known(&none, all))?;
        if self.is_alike(&none, all) {
            return Ok(Told::Noise);
        }
        if !self.span(&none, all).differs() {
            return Ok(Told::Among(all.clone()));
        }
        let mut found = none.clone();
        while !self.is_alike(&found, all) {
            if !self.span(&found, all).differs() {
                return Ok(Told::Among(all.difference(&found).copied().collect()));
            }
            let (base, unit) = match self.isolate(found.clone(), all.clone())? {
                Ok(place) => place,
                Err(among) => return Ok(Told::Among(among)),
            };
            let with = union(&found, &unit);
            self.ask(&[(&none, &unit), (&with, all)], |of| {
                of.is_told(&none, &unit) && (of.is_told(&with, all) || of.is_alike(&none, &unit))
            })?;
            if self.is_alike(&none, &unit) {
                if let Some(among) = self.pair(&base, &unit, all, &mut found, causes)? {
                    return Ok(Told::Among(among));
                }
                self.ask(&[(&found, all)], |of| of.is_told(&found, all))?;
            } else if self.span(&none, &unit).differs() || self.has_failed(&unit) {
                causes.push(self.cause(&base, &unit));
                found = with;
            } else {
                return Ok(Told::Among(unit));
            }
        }
        Ok(Told::All)
    }

    /// A cause of one difference, or of several that do not run apart.
    fn cause(&self, base: &Arm, unit: &Arm) -> Cause {
        let none = Arm::new();
        let why_not = self.fails.get(unit);
        let span = match why_not {
            Some(_) => self.span(base, &union(base, unit)),
            None => self.span(&none, unit),
        };
        let of_one = |one: &usize| match self.fails.get(&Arm::from([*one])) {
            Some(why) => Alone::NotMeasured(why.clone()),
            None if unit.len() == 1 => Alone::Makes(span.effect()),
            None => Alone::NotMeasured(String::new()),
        };
        Cause {
            differences: unit.iter().copied().collect(),
            effect: span.effect(),
            alone: unit.iter().map(of_one).collect(),
        }
    }

    /// `unit` does nothing alone, and something on top of `base`: which of these it needs. Those of them
    /// that are met on the way and act alone are causes as well. What is left where that cannot be told.
    fn pair(
        &mut self,
        base: &Arm,
        unit: &Arm,
        all: &Arm,
        found: &mut Arm,
        causes: &mut Vec<Cause>,
    ) -> Result<Option<Arm>, E> {
        let none = Arm::new();
        let (mut low, high) = (union(found, unit), union(base, unit));
        loop {
            let place = self.isolate(low.clone(), high.clone())?;
            let (partner, among) = match place {
                Ok((_, partner)) => (Some(partner), high.clone()),
                Err(among) => (None, union(&among, unit)),
            };
            // What was found before may be what it needs.
            let before = Some(found.clone()).filter(|found| !found.is_empty());
            let mut of_alone = None;
            for partner in partner.into_iter().chain(before) {
                let both = union(unit, &partner);
                let (of_one, of_two) = ((&none, &partner), (&none, &both));
                let with = union(found, &both);
                let is_pair = |of: &Self| !of.is_alike(&partner, &both);
                let rest = (&with, all);
                self.ask(&[of_one, of_two, (&partner, &both), rest], |of| {
                    let is_told = |(a, b)| of.is_told(a, b);
                    is_told(of_one)
                        && is_told(of_two)
                        && is_told((&partner, &both))
                        && (is_told(rest) || !is_pair(of))
                })?;
                if self.span(&partner, &both).differs() && is_pair(self) {
                    causes.push(self.cause_of_two(unit, &partner));
                    found.extend(both);
                    return Ok(None);
                }
                if self.span(&none, &partner).differs() && !partner.is_subset(found) {
                    of_alone = Some(partner);
                    break;
                }
            }
            let Some(partner) = of_alone else {
                return Ok(Some(among));
            };
            causes.push(self.cause(&none, &partner));
            found.extend(partner.iter().copied());
            low = union(&low, &partner);
        }
    }

    fn cause_of_two(&self, unit: &Arm, partner: &Arm) -> Cause {
        let none = Arm::new();
        let both = union(unit, partner);
        let of = self.span(&none, partner);
        let of_partner = match self.fails.get(partner) {
            Some(why) => Alone::NotMeasured(why.clone()),
            None if self.is_alike(&none, partner) => Alone::Nothing,
            None if of.differs() => Alone::Makes(of.effect()),
            None => Alone::NotMeasured(String::new()),
        };
        let alone = |one: &usize| match unit.contains(one) {
            true => Alone::Nothing,
            false => of_partner.clone(),
        };
        Cause {
            differences: both.iter().copied().collect(),
            effect: self.span(&none, &both).effect(),
            alone: both.iter().map(alone).collect(),
        }
    }

    /// One difference that moves the time of `low` with some of the others of `high` applied, and
    /// these: the times of `low` and `high` differ. Several where they do not run apart; all among which
    /// it is where that cannot be told.
    fn isolate(&mut self, mut low: Arm, mut high: Arm) -> Result<Result<(Arm, Arm), Arm>, E> {
        loop {
            let candidates: Vec<usize> = high.difference(&low).copied().collect();
            if candidates.len() == 1 {
                return Ok(Ok((low, candidates.into_iter().collect())));
            }
            let mut is_divided = false;
            let parts = match self.same {
                Some(_) => beginnings(&candidates),
                None => parts(&candidates),
            };
            for part in parts {
                let middle = union(&low, &part);
                match self.half(&low, &middle, &high)? {
                    Half::First => high = middle,
                    Half::Second => low = middle,
                    Half::Fails => continue,
                    Half::Untold => return Ok(Err(candidates.into_iter().collect())),
                }
                is_divided = true;
                break;
            }
            if !is_divided {
                return Ok(Ok((low, candidates.into_iter().collect())));
            }
        }
    }

    /// Does the time move from `low` to `middle`, or from there to `high`? If both, where more.
    fn half(&mut self, low: &Arm, middle: &Arm, high: &Arm) -> Result<Half, E> {
        if self.has_failed(middle) {
            return Ok(Half::Fails);
        }
        // Where the whole is known well enough, the second half is the whole less the first.
        let halves = |of: &Self| {
            let less_first = of.span(middle, low).plus(of.span(low, high));
            [of.span(low, middle), of.span(middle, high).and(less_first)]
        };
        let is_told = |of: &Self| {
            let halves = halves(of);
            halves.iter().any(|half| half.differs())
                || halves.iter().all(|half| half.is_within(of.margin()))
                || of.has_failed(middle)
        };
        let mut is_new = true;
        for _ in 0..self.limits.rounds {
            if is_told(self) || self.spent {
                break;
            }
            let arms: &[&Arm] = match self.span(low, high).is_precise() {
                true => &[low, middle],
                false => &[low, middle, high],
            };
            if std::mem::take(&mut is_new) {
                // What the second half makes may follow from the whole and the first.
                let pairs = [(low, middle), (middle, high)];
                let pairs = pairs.map(|(from, to)| (from.clone(), to.clone()));
                self.questions.push(pairs.into());
            }
            self.round(arms)?;
        }
        if self.has_failed(middle) {
            // It costs a run, and answers another question.
            if !is_new {
                self.questions.pop();
            }
            return Ok(Half::Fails);
        }
        let [first, second] = halves(self);
        Ok(match (first.differs(), second.differs()) {
            (true, true) if first.middle().abs() < second.middle().abs() => Half::Second,
            (true, _) => Half::First,
            (false, true) => Half::Second,
            (false, false) => Half::Untold,
        })
    }

    /// Rounds of these pairs of arms until the question is answered; each pair until it is told.
    fn ask(
        &mut self,
        pairs: &[(&Arm, &Arm)],
        is_answered: impl Fn(&Self) -> bool,
    ) -> Result<(), E> {
        let mut is_new = true;
        for _ in 0..self.limits.rounds {
            if is_answered(self) || self.spent {
                break;
            }
            let is_open = |of: &&(&Arm, &Arm)| pairs.len() == 1 || !self.is_told(of.0, of.1);
            let open: Vec<_> = pairs.iter().filter(is_open).collect();
            let mut arms: Vec<&Arm> = Vec::new();
            for arm in open.iter().flat_map(|(a, b)| [*a, *b]) {
                if !arms.contains(&arm) {
                    arms.push(arm);
                }
            }
            if arms.is_empty() {
                break;
            }
            if std::mem::take(&mut is_new) {
                let pairs = open.iter().map(|(a, b)| ((*a).clone(), (*b).clone()));
                self.questions.push(pairs.collect());
            }
            self.round(&arms)?;
        }
        Ok(())
    }

    fn is_alike(&self, a: &Arm, b: &Arm) -> bool {
        self.span(a, b).is_within(self.margin())
    }

    fn margin(&self) -> f64 {
        self.limits.margin.ln_1p()
    }

    /// Alike or not, or one of them does not run.
    fn is_told(&self, a: &Arm, b: &Arm) -> bool {
        self.is_alike(a, b) || self.span(a, b).differs() || self.has_failed(a) || self.has_failed(b)
    }

    /// Alike, or by how much they differ.
    fn is_known(&self, a: &Arm, b: &Arm) -> bool {
        self.is_told(a, b) && (!self.span(a, b).differs() || self.span(a, b).is_precise())
    }

    fn has_failed(&self, arm: &Arm) -> bool {
        self.fails.contains_key(&*self.one(arm))
    }

    fn round(&mut self, arms: &[&Arm]) -> Result<(), E> {
        let mut once: Vec<Cow<'_, Arm>> = Vec::new();
        for arm in arms.iter().map(|arm| self.one(arm)) {
            if !once.contains(&arm) {
                once.push(arm);
            }
        }
        let arms: Vec<&Arm> = once.iter().map(|arm| &**arm).collect();
        self.last = arms.iter().map(|arm| (*arm).clone()).collect();
        let Some(outcomes) = (self.measure)(&arms)? else {
            self.spent = true;
            return Ok(());
        };
        let mut times: Vec<(&Arm, f64)> = Vec::new();
        for (arm, outcome) in arms.iter().zip(outcomes) {
            match outcome {
                Outcome::Time(seconds) => times.push((arm, seconds.ln())),
                Outcome::Fails(why) => drop(self.fails.insert((*arm).clone(), why)),
                Outcome::Lost => {}
            }
        }
        for (at, (first, of_first)) in times.iter().enumerate() {
            for (second, of_second) in &times[at + 1..] {
                let (pair, ratio) = match first < second {
                    true => ((*first, *second), of_second - of_first),
                    false => ((*second, *first), of_first - of_second),
                };
                let pair = (pair.0.clone(), pair.1.clone());
                self.pairs.entry(pair).or_default().push(ratio);
            }
        }
        Ok(())
    }

    /// From `from` to `to`, by the rounds that both were in.
    fn direct(&self, from: &Arm, to: &Arm) -> Span {
        let spanned = |of: &Vec<f64>| Sequential::of(of)?.interval(1.0 - self.error);
        let of = |pair| Some(self.pairs.get(&pair).and_then(spanned)?.map(f64::ln));
        if let Some([low, high]) = of((from.clone(), to.clone())) {
            return Span { low, high };
        }
        match of((to.clone(), from.clone())) {
            Some([low, high]) => Span {
                low: -high,
                high: -low,
            },
            None => Span::ANY,
        }
    }

    /// The same, and by way of any arm that shared rounds with both.
    fn span(&self, from: &Arm, to: &Arm) -> Span {
        let (from, to) = (&*self.one(from), &*self.one(to));
        if from == to {
            return Span {
                low: 0.0,
                high: 0.0,
            };
        }
        let arms: std::collections::BTreeSet<&Arm> = self
            .pairs
            .keys()
            .flat_map(|(first, second)| [first, second])
            .filter(|arm| *arm != from && *arm != to)
            .collect();
        arms.iter().fold(self.direct(from, to), |span, by| {
            let way = self.direct(from, by).plus(self.direct(by, to));
            match way.half().is_finite() {
                true => span.and(way),
                false => span,
            }
        })
    }

    /// About how many more rounds answer the question that was left, if they go on like these.
    fn more_rounds(&self, answer: Answer) -> Option<usize> {
        let arms = self.last.iter().enumerate();
        let pairs = arms.flat_map(|(at, a)| self.last[at + 1..].iter().map(move |b| (a, b)));
        let open = pairs.filter(|(a, b)| !self.is_told(a, b));
        let more = open.filter_map(|(a, b)| {
            let known = self.pairs.get(&(a.min(b).clone(), a.max(b).clone()))?;
            match Sequential::decide(known, self.limits.margin, self.error) {
                Decision::Undecided { more } => more,
                _ => None,
            }
        });
        more.max().filter(|_| answer == Answer::Undecided)
    }

    fn between(&self, from: &Arm, to: &Arm) -> Option<Span> {
        Some(self.span(from, to)).filter(|span| span.half().is_finite())
    }
}

fn union(a: &Arm, b: &Arm) -> Arm {
    a.union(b).copied().collect()
}

/// Beginnings of the list of candidates, for arms that have no others: first the one with half of them, then
/// those that are a little shorter or longer, which are measured where it does not run.
fn beginnings(candidates: &[usize]) -> Vec<Arm> {
    let half = candidates.len() / 2;
    let mut lengths: Vec<usize> = (1..candidates.len()).collect();
    lengths.sort_by_key(|length| length.abs_diff(half));
    let of = |length: usize| candidates[..length].iter().copied().collect();
    lengths.into_iter().map(of).collect()
}

/// The halves of the candidates; where neither runs, smaller parts, and all but these.
fn parts(candidates: &[usize]) -> Vec<Arm> {
    let n = candidates.len();
    let mut parts: Vec<Arm> = Vec::new();
    let mut size = n.div_ceil(2);
    loop {
        for chunk in candidates.chunks(size) {
            let part: Arm = chunk.iter().copied().collect();
            let rest: Arm = candidates
                .iter()
                .copied()
                .filter(|one| !part.contains(one))
                .collect();
            for one in [part, rest] {
                if one.len() < n && !one.is_empty() && !parts.contains(&one) {
                    parts.push(one);
                }
            }
        }
        if size == 1 {
            return parts;
        }
        size = size.div_ceil(2);
    }
}
