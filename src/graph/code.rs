//! Digests of the code and the libraries that each task can call, taken at build time (`build.rs`,
//! `crates/code`).

/// A changed parser makes parse stale and nothing before it; likewise for the others.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CodeDigests {
    pub render: String,
    pub parse: String,
    /// What reads imported files.
    pub import: String,
    pub aggregate: String,
    pub compare: String,
    pub plot: String,
    pub report: String,
    pub native: String,
}

impl Default for CodeDigests {
    fn default() -> Self {
        Self {
            render: env!("TPRIMAT_CODE_RENDER").into(),
            parse: env!("TPRIMAT_CODE_PARSE").into(),
            import: env!("TPRIMAT_CODE_IMPORT").into(),
            aggregate: env!("TPRIMAT_CODE_AGGREGATE").into(),
            compare: env!("TPRIMAT_CODE_COMPARE").into(),
            plot: env!("TPRIMAT_CODE_PLOT").into(),
            report: env!("TPRIMAT_CODE_REPORT").into(),
            native: env!("TPRIMAT_CODE_NATIVE").into(),
        }
    }
}

/// Digest of everything that was compiled in: two binaries that agree here behave the same.
pub const BUILD: &str = env!("TPRIMAT_CODE_ALL");
