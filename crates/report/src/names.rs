//! Short names of cells: pictures and sentences use the same ones.

pub(super) use crate::plot::short_names;

#[cfg(test)]
mod tests {
    use tprimat_numbers::figures::{Catalogue, CompareSettings, compare};

    use super::*;
    use crate::stand_ins::*;

    fn names(cells: &[&str]) -> Vec<String> {
        let cells: Vec<_> = cells
            .iter()
            .map(|name| measured(name, &test_job(), &[1.0], None))
            .collect();
        let all = compare(&cells, &CompareSettings::default(), &Catalogue::default());
        short_names(&all.rows.iter().collect::<Vec<_>>())
    }

    #[test]
    fn what_all_share_is_left_out() {
        let cells = [
            "nvd/native/llama/single@compile=false",
            "nvd/titan/llama/single@compile=true",
        ];
        assert_eq!(names(&cells), ["native", "titan (compiled)"]);
        assert_eq!(
            names(&["nvd/mega/llama/a", "amd/prim/llama/b"]),
            ["nvd/mega/a", "amd/prim/b"]
        );
        assert_eq!(
            names(&["nvd/mega/llama/a@seq=1", "nvd/mega/llama/a@seq=2"]),
            ["mega (seq=1)", "mega (seq=2)"]
        );
        assert_eq!(names(&["nvd/mega/llama/a"]), ["mega"]);
    }

    #[test]
    fn names_that_would_be_alike_are_told_in_full() {
        let cells = ["nvd/mega/llama/a@compile=false", "nvd/mega/llama/a"];
        assert_eq!(names(&cells), cells);
    }
}
