//! Titles of the groups that are compared.

use tprimat_figures::{Group, Row};
use tprimat_plot::hardware::in_title;
use tprimat_sentences::said;

/// The title of a group's cells: model, workload, devices.
pub(super) fn group_title(group: &Group, rows: &[&Row]) -> String {
    let strict = if group.identical_config {
        ", identical configuration"
    } else {
        ""
    };
    let (workload, devices) = (said(&group.workload), in_title(rows));
    format!("{}: {workload}{strict}{devices}", group.model)
}
