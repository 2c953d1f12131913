//! Planted causes: a model whose time is a function of some of its fields, with noise.

use std::collections::{BTreeMap, BTreeSet};

use super::*;

/// A generator of uniform and normal numbers; the same for the same seed.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    fn uniform(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1_u64 << 53) as f64
    }
    fn below(&mut self, n: usize) -> usize {
        (self.uniform() * n as f64) as usize
    }
    fn normal(&mut self) -> f64 {
        let radius = (-2.0 * (1.0 - self.uniform()).ln()).sqrt();
        radius * (std::f64::consts::TAU * self.uniform()).cos()
    }
}

/// Sets of differences that change the time together, each with its factor.
struct Planted {
    n: usize,
    causes: BTreeMap<Arm, f64>,
    /// Two differences of which neither runs without the other.
    bound: Option<[usize; 2]>,
}

impl Planted {
    /// `guilty` differences; two of them may act only together. Causes that cancel each other make no
    /// difference, so they are none.
    fn of(random: &mut Random, guilty: usize, is_paired: bool) -> Self {
        loop {
            let planted = Self::any(random, guilty, is_paired);
            if !planted.cancels() {
                return planted;
            }
        }
    }

    fn cancels(&self) -> bool {
        let factors: Vec<f64> = self.causes.values().copied().collect();
        (1..1_u32 << factors.len()).any(|set| {
            let of = factors.iter().enumerate();
            let chosen = of.filter(|(at, _)| set >> at & 1 == 1);
            let product: f64 = chosen.map(|(_, factor)| factor).product();
            product.ln().abs() < 0.019
        })
    }

    fn any(random: &mut Random, guilty: usize, is_paired: bool) -> Self {
        let n = 3 + random.below(18);
        let mut chosen: Vec<usize> = Vec::new();
        while chosen.len() < guilty {
            let one = random.below(n);
            if !chosen.contains(&one) {
                chosen.push(one);
            }
        }
        let mut causes = BTreeMap::new();
        if is_paired {
            let pair = chosen.drain(..2).collect();
            causes.insert(pair, effect(random));
        }
        for one in chosen {
            causes.insert(Arm::from([one]), effect(random));
        }
        Self {
            n,
            causes,
            bound: None,
        }
    }

    fn factor(&self, arm: &Arm) -> f64 {
        let acts = self.causes.iter().filter(|(of, _)| of.is_subset(arm));
        acts.map(|(_, factor)| factor).product()
    }

    /// What a search finds, and the runs it took.
    fn found(&self, random: &mut Random, noise: f64) -> (Found, usize) {
        let mut runs = 0;
        let limits = Limits {
            margin: 0.01,
            rounds: 200,
        };
        let found = search::<()>(self.n, limits, |arms| {
            runs += arms.len();
            let drift = 0.01 * random.normal();
            let mut outcome = |arm: &&Arm| {
                let lacks = |pair: [usize; 2]| arm.contains(&pair[0]) != arm.contains(&pair[1]);
                if self.bound.is_some_and(lacks) {
                    return Outcome::Fails("needs the other".to_owned());
                }
                let time = self.factor(arm) * (drift + noise * random.normal()).exp();
                Outcome::Time(time)
            };
            Ok(Some(arms.iter().map(&mut outcome).collect()))
        });
        (found.unwrap(), runs)
    }
}

/// 2 to 30 %, slower or, one time in four, faster.
fn effect(random: &mut Random) -> f64 {
    let size = 1.02 + 0.28 * random.uniform();
    if random.below(4) == 0 {
        1.0 / size
    } else {
        size
    }
}

fn blamed(found: &Found) -> BTreeSet<Arm> {
    let of = found.causes.iter();
    of.map(|cause| cause.differences.iter().copied().collect())
        .collect()
}

#[derive(Default, Debug)]
struct Tally {
    searches: usize,
    right: usize,
    undecided: usize,
    /// Searches that blame a difference which does nothing.
    falsely: usize,
    over_the_bound: usize,
    verdicts: usize,
    runs: usize,
}

fn tally(seed: u64, searches: usize, guilty: usize, is_paired: bool) -> Tally {
    let mut random = Random(seed);
    let mut of = Tally::default();
    for _ in 0..searches {
        let planted = Planted::of(&mut random, guilty, is_paired);
        let (found, runs) = planted.found(&mut random, 0.01);
        let wanted: BTreeSet<Arm> = planted.causes.keys().cloned().collect();
        let acting: Arm = wanted.iter().flatten().copied().collect();
        let blamed = blamed(&found);
        let bound = (guilty as f64 + 1.0) * (planted.n as f64).log2() + 2.0;
        of.searches += 1;
        of.right += usize::from(blamed == wanted && found.answer == Answer::Found);
        of.undecided += usize::from(found.answer == Answer::Undecided);
        of.falsely += usize::from(!blamed.iter().flatten().all(|one| acting.contains(one)));
        of.over_the_bound += usize::from(found.verdicts as f64 > bound);
        of.verdicts += found.verdicts;
        of.runs += runs;
    }
    of
}

/// Prints a row of the table in docs/METRICS.md for each kind of planted causes.
fn all_kinds(searches: usize) {
    let kinds = [
        ("one", 1, false),
        ("two", 2, false),
        ("three", 3, false),
        ("two that act only together", 2, true),
        ("two together, and a third", 3, true),
    ];
    for (seed, (name, guilty, is_paired)) in (1..).zip(kinds) {
        let of = tally(seed, searches, guilty, is_paired);
        let mean = |sum: usize| sum as f64 / of.searches as f64;
        println!(
            "| {name} | {:.1} % | {:.1} % | {:.1} % | {} | {:.1} | {:.0} |",
            100.0 * mean(of.right),
            100.0 * mean(of.undecided),
            100.0 * mean(of.falsely),
            of.over_the_bound,
            mean(of.verdicts),
            mean(of.runs)
        );
        assert!(mean(of.right) >= 0.95, "{name}: {of:?}");
        assert!(mean(of.falsely) <= 0.01, "{name}: {of:?}");
        assert_eq!(of.over_the_bound, 0, "{name}: {of:?}");
    }
}

#[test]
fn planted_causes_are_found_and_no_other_is_blamed() {
    all_kinds(20);
}

#[test]
#[ignore = "takes a minute in release; the table of docs/METRICS.md"]
fn a_thousand_planted_causes_are_found_and_no_other_is_blamed() {
    all_kinds(200);
}

#[test]
fn where_nothing_acts_the_answer_is_noise() {
    let mut random = Random(9);
    for _ in 0..100 {
        let planted = Planted::of(&mut random, 0, false);
        let (found, _) = planted.found(&mut random, 0.01);
        assert_eq!(found.answer, Answer::Noise);
        assert!(found.causes.is_empty());
    }
}

#[test]
fn two_that_run_only_together_are_one_cause() {
    let mut random = Random(3);
    for _ in 0..100 {
        let mut planted = Planted::of(&mut random, 2, true);
        let pair: Vec<usize> = planted.causes.keys().flatten().copied().collect();
        planted.bound = Some([pair[0], pair[1]]);
        let (found, _) = planted.found(&mut random, 0.01);
        assert_eq!(found.answer, Answer::Found, "{found:?}");
        assert_eq!(blamed(&found), planted.causes.keys().cloned().collect());
        assert!(!found.fails.is_empty());
    }
}

#[test]
fn a_spent_budget_leaves_those_among_which_the_cause_is() {
    let mut left = 60;
    let limits = Limits {
        margin: 0.01,
        rounds: 200,
    };
    let mut random = Random(5);
    let found = search::<()>(16, limits, |arms| {
        left -= 1;
        let time = |arm: &&Arm| {
            let slow = if arm.contains(&11) { 1.05 } else { 1.0 };
            Outcome::Time(slow * (0.01 * random.normal()).exp())
        };
        Ok((left > 0).then(|| arms.iter().map(time).collect()))
    })
    .unwrap();
    assert_eq!(found.answer, Answer::Undecided);
    assert!(
        found.among.contains(&11) && found.among.len() < 16,
        "{found:?}"
    );
}

/// Wherever a budget ends a search, each difference is a cause, cleared, or left, and none that acts is cleared.
#[test]
fn a_spent_budget_clears_none_that_acts_and_keeps_what_was_measured() {
    let limits = Limits {
        margin: 0.01,
        rounds: 200,
    };
    for budget in (1..=120).step_by(17) {
        let (mut left, mut random) = (budget, Random(7));
        let found = search::<()>(9, limits, |arms| {
            left -= 1;
            let time = |arm: &&Arm| {
                let acting = [2, 7].iter().filter(|one| arm.contains(one)).count();
                Outcome::Time((0.06 * acting as f64 + 0.003 * random.normal()).exp())
            };
            Ok((left > 0).then(|| arms.iter().map(time).collect()))
        })
        .unwrap();
        let blame = {
            let one = |what: usize| ChangedSetting {
                what: what.to_string(),
                how: None,
                old: None,
                new: None,
            };
            let mut blame = Blame::of("a", "b", 0.01, (0..9).map(one).collect());
            blame.take(found.clone());
            blame
        };
        assert_eq!(found.is_spent, found.answer == Answer::Undecided);
        assert!(!found.questions.is_empty(), "{found:?}");
        let cleared = &found.cleared;
        assert!(![2, 7].iter().any(|one| cleared.contains(one)), "{found:?}");
        let (left, causes) = (blame.remaining(), found.causes.len());
        assert_eq!(cleared.len() + left.len() + causes, 9, "{found:?}");
        assert!(
            found.among.iter().all(|one| left.contains(one)),
            "{found:?}"
        );
        if found.answer == Answer::Found {
            assert_eq!(cleared.len(), 7, "{found:?}");
        }
    }
}

/// The plan's number is that of real searches with one clear cause.
#[test]
fn the_usual_number_of_runs_is_that_of_a_clear_cause() {
    let mut random = Random(13);
    let runs = |is_series: bool| usual_runs(5, is_series, 0.02);
    let limits = Limits {
        margin: 0.02,
        rounds: 100,
    };
    let mut real = 0;
    for guilty in 0..5 {
        search::<()>(5, limits, |arms| {
            real += arms.len();
            let time = |arm: &&Arm| {
                let slow = if arm.contains(&guilty) { 1.08 } else { 1.0 };
                Outcome::Time(slow * (0.01 * random.normal()).exp())
            };
            Ok(Some(arms.iter().map(time).collect()))
        })
        .unwrap();
    }
    let usual = runs(false) as f64 / (real as f64 / 5.0);
    assert!((0.7..1.4).contains(&usual), "{} for {real}", runs(false));
    assert!((20..250).contains(&runs(true)), "{}", runs(true));
}

/// Commits, of which one in ten does not run, and some take back the one before.
#[test]
fn links_of_a_chain_that_act_are_found_and_no_other_is_blamed() {
    let mut random = Random(11);
    for _ in 0..60 {
        let n = 4 + random.below(40);
        let guilty: Arm = (0..1 + random.below(2)).map(|_| random.below(n)).collect();
        let is_link = |at: usize| 0 < at && at < n;
        let broken: Arm = (0..n / 10)
            .map(|_| random.below(n))
            .filter(|at| is_link(*at))
            .collect();
        let back = 1 + random.below(n - 1);
        let mut same: Vec<usize> = (0..=n).collect();
        if guilty.is_disjoint(&Arm::from([back - 1, back])) && !broken.contains(&(back + 1)) {
            same[back + 1] = back - 1;
        }
        let limits = Limits {
            margin: 0.01,
            rounds: 200,
        };
        let found = bisect::<()>(same.clone(), limits, |arms| {
            let drift = 0.01 * random.normal();
            let mut outcome = |arm: &&Arm| {
                assert_eq!(
                    arm.last().map_or(0, |last| last + 1),
                    arm.len(),
                    "a beginning"
                );
                assert_eq!(same[arm.len()], arm.len(), "measured under another number");
                if broken.contains(&arm.len()) {
                    return Outcome::Fails("does not compile".to_owned());
                }
                let acting = guilty.intersection(arm).count() as f64;
                Outcome::Time((0.08 * acting + drift + 0.01 * random.normal()).exp())
            };
            Ok(Some(arms.iter().map(&mut outcome).collect()))
        })
        .unwrap();
        assert_eq!(found.answer, Answer::Found, "{found:?}");
        let blamed = blamed(&found);
        // Commits beside one that does not run are not told apart from it.
        let is_near = |arm: &Arm| arm.iter().skip(1).all(|one| broken.contains(one));
        let acts = |arm: &Arm| is_near(arm) && !arm.is_disjoint(&guilty);
        assert!(blamed.iter().all(acts), "{found:?}");
        let is_found = |one: &usize| blamed.iter().any(|arm| arm.contains(one));
        assert!(guilty.iter().all(is_found), "{found:?}");
    }
}
