//! Tests of the whole: loading, layers, messages.

use std::collections::BTreeMap;

use super::*;
use crate::error::Source;

pub(crate) const SHIPPED: &str = include_str!("../../config.yaml");

pub(crate) fn shipped() -> Config {
    Config::load(Source::new("config.yaml", SHIPPED), &BTreeMap::new(), &[]).unwrap()
}

#[test]
fn prints() {
    let t = std::time::Instant::now();
    let r = Config::load(Source::new("config.yaml", SHIPPED), &BTreeMap::new(), &[]);
    println!("{:?}", t.elapsed());
    match r {
        Err(crate::error::Error::Invalid(p)) => {
            for p in p {
                println!("{p} | {} | {:?}", p.label, p.help)
            }
        }
        Err(e) => panic!("{e}"),
        Ok(c) => {
            for (p, v, o) in c.effective() {
                println!("{p} = {v}   [{o}]");
            }
            println!("{}", c.shell_export());
            let defaults = Values::default();
            let v = c.view(&defaults, &[]);
            println!("{:?}", v.parallelism("maximum_performance", "llama", "nvd", crate::plan::Vendor::Nvd, "mega"));
            println!("{:?}", v.platform_env("amd", crate::plan::Vendor::Amd));
        }
    }
}
