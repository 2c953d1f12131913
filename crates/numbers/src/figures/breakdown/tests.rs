use proptest::prelude::*;
use tprimat_logs::DeviceSpan;

use super::*;

const NAMES: [&str; 6] = [
    "nvjet_tst_128x256_64x4",
    "void flash_fwd_kernel<...>",
    "ncclDevKernel_ReduceScatter_Sum_bf16",
    "Memcpy HtoD (Pinned -> Device)",
    "triton_poi_fused_add_mul_3",
    "some_kernel_of_my_own",
];

/// Spans by the names above, in microseconds; two steps of 100 from 0 on.
fn trace(spans: &[(usize, f64, f64)]) -> DeviceTrace {
    let span = |&(name, start, end): &(usize, f64, f64)| DeviceSpan {
        name,
        is_copy: NAMES[name].starts_with("Memcpy"),
        is_of_optimizer: false,
        start,
        end,
    };
    DeviceTrace {
        steps: vec![[0.0, 100.0], [100.0, 200.0]],
        names: NAMES.map(str::to_owned).into(),
        spans: spans.iter().map(span).collect(),
        ..DeviceTrace::default()
    }
}

fn micros(of: &Breakdown, part: StepPart) -> f64 {
    of.parts[part.at()].seconds * 1e6
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[test]
fn names_of_libraries_and_compilers_are_known() {
    use StepPart::{Attention, Exchange, MatrixProducts, NormsAndElementwise, Optimizer, Other};
    for (name, part) in [
        (
            "ncclDevKernel_AllGather_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
            Exchange,
        ),
        (
            "void vllm::cross_device_reduce_2stage<__nv_bfloat16, 8>",
            Exchange,
        ),
        (
            "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16",
            Attention,
        ),
        (
            "void pytorch_flash::flash_bwd_dq_dk_dv_loop_seqk_parallel_kernel<...>",
            Attention,
        ),
        ("fmha_bwd_hd128_bf16_causal_a32_psskddv", Attention),
        ("nvjet_hsh_192x192_64x4_1x2_h_bz_coopA_NNT", MatrixProducts),
        (
            "Cijk_Alik_Bljk_BBS_BH_Bias_HA_S_SAV_UserArgs_MT256x256x64",
            MatrixProducts,
        ),
        ("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n", MatrixProducts),
        (
            "void cutlass::Kernel2<cutlass_80_tensorop_bf16_s16816gemm>",
            MatrixProducts,
        ),
        (
            "void at::native::(anonymous namespace)::multi_tensor_apply_kernel<...FusedAdamMathFunctor>",
            Optimizer,
        ),
        (
            "void at::native::vectorized_elementwise_kernel<4, ...>",
            NormsAndElementwise,
        ),
        ("triton_red_fused__fused_rms_norm_5", NormsAndElementwise),
        (
            "void at::native::unrolled_elementwise_kernel<at::native::direct_copy_kernel_cuda(at::TensorIteratorBase&)::{lambda()#3}>",
            NormsAndElementwise,
        ),
        (
            "void cudnn::fusion::compute_dot_do_o_specialized<true, 64>",
            Attention,
        ),
        ("triton_poi_fused_mm_1", NormsAndElementwise),
        (
            "triton_poi_fused__scaled_dot_product_efficient_attention__to_copy_3",
            NormsAndElementwise,
        ),
        ("triton_tem_fused_mm_2", MatrixProducts),
        (
            "void at::native::multi_tensor_apply_kernel<TensorListMetadata<2>, CopyFunctor<float>>",
            NormsAndElementwise,
        ),
        ("my_mystery", Other),
    ] {
        assert_eq!(StepPart::of_kernel(name), part, "{name}");
    }
}

/// A collective beside a product is hidden; what is left of it, and of a copy, is exposed.
#[test]
fn what_computes_hides_what_moves() {
    let found = Breakdown::of(
        &trace(&[
            (0, 0.0, 60.0),
            (2, 40.0, 90.0),
            (3, 85.0, 95.0),
            (1, 100.0, 150.0),
            (0, 140.0, 160.0),
        ]),
        None,
    );
    assert_eq!((found.steps, found.is_by_step), (2, true));
    assert!(near(found.step_seconds * 1e6, 100.0));
    // Ten of the last twenty are shared with attention.
    let parts = [
        (StepPart::MatrixProducts, (60.0 + 5.0 + 10.0) / 2.0),
        (StepPart::Attention, (40.0 + 5.0) / 2.0),
        (StepPart::Exchange, 30.0 / 2.0),
        (StepPart::Copies, 5.0 / 2.0),
        (StepPart::Idle, (5.0 + 40.0) / 2.0),
    ];
    for (part, wanted) in parts {
        assert!(near(micros(&found, part), wanted), "{part:?}: {found:?}");
    }
    assert!(near(found.hidden_exchange_seconds * 1e6, 10.0));
    assert_eq!(
        found.parts[StepPart::MatrixProducts.at()].largest[0].name,
        NAMES[0]
    );
}

/// A kernel that is held up, as by another program, makes one step longer and no kernel slower.
#[test]
fn a_step_that_was_disturbed_is_in_no_part() {
    let at = |step: f64, lasts: f64| (0, step, step + lasts);
    let mut one_slow = trace(&[
        at(0.0, 60.0),
        at(100.0, 60.0),
        at(200.0, 460.0),
        at(700.0, 62.0),
        at(802.0, 60.0),
        at(902.0, 60.0),
    ]);
    one_slow.device_steps = [0.0, 100.0, 200.0, 700.0, 802.0, 902.0]
        .map(|at| [at, at + 60.0])
        .into();
    let by_device = Breakdown::of(&one_slow, None);
    one_slow.device_steps.clear();
    one_slow.steps = [0.0, 100.0, 200.0, 700.0, 802.0]
        .map(|at| [at, at + 100.0])
        .into();
    one_slow.spans.pop();
    for found in [by_device, Breakdown::of(&one_slow, None)] {
        assert_eq!((found.steps, found.is_by_step), (5, true));
        assert!(near(found.step_seconds * 1e6, 100.0), "{found:?}");
        assert!(near(micros(&found, StepPart::MatrixProducts), 60.0));
        let [shortest, longest] = found.step_range_seconds.unwrap();
        assert!(near(shortest * 1e6, 100.0) && near(longest * 1e6, 500.0));
    }
}

/// Copy engines move between devices what no kernel does.
#[test]
fn a_copy_to_another_device_is_exchange_and_what_computes_beside_it_is_known() {
    let mut trace = trace(&[(0, 0.0, 60.0), (3, 40.0, 90.0)]);
    trace.names[3] = "Memcpy PtoP (Device -> Device)".to_owned();
    let found = Breakdown::of(&trace, None);
    assert!(near(micros(&found, StepPart::Exchange), 15.0), "{found:?}");
    let products = &found.parts[StepPart::MatrixProducts.at()];
    assert!(near(products.beside_exchange_seconds * 1e6, 10.0));
    assert!(near(found.hidden_exchange_seconds * 1e6, 10.0));
}

/// The host may have queued all of its steps before the device is done with them.
#[test]
fn what_the_device_does_after_the_hosts_last_mark_is_of_its_steps() {
    let found = Breakdown::of(&trace(&[(0, 0.0, 150.0), (0, 150.0, 300.0)]), None);
    assert!(near(found.step_seconds * 1e6, 150.0), "{found:?}");
    assert!(near(micros(&found, StepPart::MatrixProducts), 150.0));
}

/// The device's own marks count where the trace has them: the host may be steps ahead of it.
#[test]
fn steps_are_those_of_the_device() {
    let mut ahead = trace(&[
        (0, 1000.0, 1050.0),
        (0, 1100.0, 1150.0),
        (0, 1200.0, 1250.0),
    ]);
    ahead.device_steps = vec![[1000.0, 1050.0], [1100.0, 1150.0], [1200.0, 1250.0]];
    let found = Breakdown::of(&ahead, None);
    assert_eq!(found.steps, 2);
    assert!(near(micros(&found, StepPart::MatrixProducts), 50.0));
    assert!(near(micros(&found, StepPart::Idle), 50.0));
    ahead.device_steps = vec![[1100.0, 1150.0]];
    let found = Breakdown::of(&ahead, None);
    assert_eq!(found.steps, 1);
    assert!(near(found.step_seconds * 1e6, 50.0));
    assert!(near(micros(&found, StepPart::MatrixProducts), 50.0));
}

proptest! {
    /// Whatever overlaps, the parts are the step, and none is below nothing.
    #[test]
    fn parts_add_up_to_the_step(
        spans in prop::collection::vec((0..NAMES.len(), -50.0..200.0_f64, 0.0..80.0_f64), 1..40)
    ) {
        let spans: Vec<_> = spans.into_iter().map(|(n, start, length)| (n, start, (start + length).min(200.0).max(start))).collect();
        let found = Breakdown::of(&trace(&spans), None);
        let sum: f64 = found.parts.iter().map(|part| part.seconds).sum();
        prop_assert!(near(sum * 1e6, 100.0), "{found:?}");
        prop_assert!(found.parts.iter().all(|part| part.seconds > -1e-12), "{found:?}");
    }
}

#[test]
fn whatever_the_optimizer_launches_is_its_own_but_for_what_it_exchanges() {
    let mut trace = trace(&[(4, 10.0, 30.0), (2, 40.0, 50.0), (4, 60.0, 90.0)]);
    for span in &mut trace.spans[..2] {
        span.is_of_optimizer = true;
    }
    let of = Breakdown::of(&trace, None);
    for (part, expected) in [
        (StepPart::Optimizer, 10.0),
        (StepPart::Exchange, 5.0),
        (StepPart::NormsAndElementwise, 15.0),
    ] {
        assert!(near(micros(&of, part), expected), "{part:?}");
    }
}
