#[test]
fn a_driver_that_does_not_count_its_gpus_is_noted() {
    let mut notes = Vec::new();
    assert_eq!(super::gpu_count(Ok(8), &mut notes), 8);
    assert!(notes.is_empty());
    assert_eq!(
        super::gpu_count(Err(super::NvmlError::GpuLost), &mut notes),
        0
    );
    assert!(notes[0].starts_with("NVML does not say how many GPUs there are: "));
}

use super::*;

#[test]
fn only_the_gpus_that_the_caller_was_given_are_used() {
    let gpu = |uuid: &str| GpuFacts {
        uuid: Some(uuid.into()),
        ..GpuFacts::default()
    };
    let host = HostFacts {
        nvd: vec![gpu("GPU-aa"), gpu("GPU-bb"), gpu("GPU-cc")],
        ..HostFacts::default()
    };
    let usable = |cuda: Option<&str>| {
        host.usable(Vendor::Nvd, &|name| {
            cuda.filter(|_| name == "CUDA_VISIBLE_DEVICES")
                .map(str::to_owned)
        })
    };
    assert_eq!(usable(None), [0, 1, 2]);
    assert_eq!(usable(Some("2,0")), [2, 0]);
    assert_eq!(usable(Some("GPU-bb")), [1]);
    assert_eq!(usable(Some("1,-1,2")), [1]);
    assert!(usable(Some("")).is_empty());
    let amd = HostFacts {
        amd: host.nvd.clone(),
        ..HostFacts::default()
    };
    let usable = |rocr: Option<&str>, hip: Option<&str>| {
        amd.usable(Vendor::Amd, &|name| match name {
            "ROCR_VISIBLE_DEVICES" => rocr.map(str::to_owned),
            _ => hip.map(str::to_owned),
        })
    };
    assert_eq!(usable(Some("1,2"), None), [1, 2]);
    assert_eq!(usable(None, Some("1,2")), [1, 2]);
    // HIP counts among the devices that ROCR leaves.
    assert_eq!(usable(Some("1,2"), Some("1")), [2]);
    assert!(usable(Some("2"), Some("2")).is_empty());
}
use crate::files::{Durability, write_atomically};

fn h100(uuid: &str) -> GpuFacts {
    GpuFacts {
        name: Some("NVIDIA H100 80GB HBM3".into()),
        uuid: Some(uuid.into()),
        memory_bytes: Some(85_520_809_984),
        power_cap_watts: Some(700),
        partition: Some("none".into()),
        driver: Some("570.124.06".into()),
        render_node: None,
    }
}

#[test]
fn every_host_has_its_cores() {
    let facts = probe();
    assert_eq!(facts.platforms().first(), Some(&(Vendor::Cpu, 1)));
    assert_eq!(facts.device_locks(Vendor::Cpu), ["cpu"]);
    assert_eq!(
        facts.section(Vendor::Cpu).unwrap().facts["vendor"],
        "cpu".into()
    );
}

#[test]
fn cpu_facts_are_read_or_absent() {
    let facts = cpu(
        "processor\t: 0\nmodel name\t: Some: CPU @ 2GHz\n",
        "MemTotal:        2048 kB\n",
    );
    assert_eq!(facts.model.as_deref(), Some("Some: CPU @ 2GHz"));
    assert_eq!(facts.memory_bytes, Some(2 << 20));
    let unknown = cpu("CPU implementer : 0x41\n", "");
    assert_eq!((unknown.model, unknown.memory_bytes), (None, None));
}

#[test]
fn a_recipe_may_name_every_fact_there_is() {
    let facts = HostFacts {
        cpu: cpu("model name\t: Some\n", ""),
        nvd: vec![h100("GPU-aa-1")],
        ..HostFacts::default()
    };
    let mut named = std::collections::BTreeSet::new();
    for vendor in [Vendor::Cpu, Vendor::Nvd] {
        named.extend(facts.section(vendor).unwrap().facts.into_keys());
    }
    // No test knows how many cores it may use.
    named.insert("cores".to_owned());
    let all: std::collections::BTreeSet<String> = crate::recipe::FACTS.map(str::to_owned).into();
    assert_eq!(named, all);
}

#[test]
fn alike_gpus_are_one_line_and_unlike_ones_are_all_named() {
    let mut facts = HostFacts {
        nvd: vec![h100("GPU-Aa-1"), h100("GPU-bb-2")],
        ..HostFacts::default()
    };
    let section = facts.section(Vendor::Nvd).unwrap();
    assert_eq!(section.facts["accelerator"], "NVIDIA H100 80GB HBM3".into());
    assert_eq!(section.facts["count"], Fact::Number(2));
    assert_eq!(facts.device_locks(Vendor::Nvd), ["gpu-aa-1", "gpu-bb-2"]);
    facts.nvd[1].power_cap_watts = Some(350);
    assert_eq!(
        facts.section(Vendor::Nvd).unwrap().facts["power_cap_watts"],
        "350 + 700".into()
    );
    facts.nvd[0].power_cap_watts = None;
    assert!(
        !facts
            .section(Vendor::Nvd)
            .unwrap()
            .facts
            .contains_key("power_cap_watts"),
        "unknown is left out"
    );
    assert_eq!(facts.section(Vendor::Amd), None);
}

#[test]
fn amd_cards_are_read_from_sys() {
    let sys = tempfile::tempdir().unwrap();
    let put = |path: &str, text: &str| {
        write_atomically(&sys.path().join(path), text.as_bytes(), Durability::Plain).unwrap();
    };
    put("module/amdgpu/version", "6.10.5\n");
    for (card, id) in [
        ("card10", "00000000000000ff"),
        ("card2", "1122334455667788"),
    ] {
        let device = format!("class/drm/{card}/device");
        put(&format!("{device}/vendor"), "0x1002\n");
        put(&format!("{device}/device"), "0x74a1\n");
        put(&format!("{device}/unique_id"), id);
        put(&format!("{device}/mem_info_vram_total"), "206141652992\n");
        put(&format!("{device}/current_compute_partition"), "SPX\n");
        put(&format!("{device}/current_memory_partition"), "NPS1\n");
        put(&format!("{device}/hwmon/hwmon3/power1_cap"), "750000000\n");
    }
    put(
        "class/drm/card2/device/product_name",
        "AMD Instinct MI300X OAM\n",
    );
    put("class/drm/card2/device/drm/card2/uevent", "");
    put("class/drm/card2/device/drm/renderD129/uevent", "");
    // A display card, and one of another vendor.
    put("class/drm/card0/device/vendor", "0x1002\n");
    put("class/drm/card0/device/unique_id", "00000000000000aa\n");
    put("class/drm/card1/device/vendor", "0x1a03\n");
    put("class/drm/card2-DP-1/status", "connected\n");
    put(
        "class/kfd/kfd/topology/nodes/0/properties",
        "cpu_cores_count 96\nsimd_count 0\nunique_id 0\n",
    );
    for (node, id) in [("1", 0x1122_3344_5566_7788_u64), ("2", 0xff)] {
        put(
            &format!("class/kfd/kfd/topology/nodes/{node}/properties"),
            &format!("simd_count 1216\nunique_id {id}\n"),
        );
    }
    let gpus = amd(sys.path());
    assert_eq!(gpus.len(), 2);
    assert_eq!(
        gpus[0],
        GpuFacts {
            name: Some("AMD Instinct MI300X OAM".into()),
            uuid: Some("1122334455667788".into()),
            memory_bytes: Some(206_141_652_992),
            power_cap_watts: Some(750),
            partition: Some("SPX/NPS1".into()),
            driver: Some("6.10.5".into()),
            render_node: Some("/dev/dri/renderD129".into()),
        }
    );
    assert_eq!(gpus[1].name.as_deref(), Some("AMD 0x74a1"));
    assert!(amd(Path::new("/no/such/sys")).is_empty());
}
