//! Specifications of common cards, for plans made on another machine (`holdall plan --gpu NAME`).
//!
//! Rates are NVIDIA's published rates at boost clock: dense, never "with sparsity", and for f16 and bf16 with f32 accumulation, as in
//! training. GeForce cards do f32 accumulation at half the advertised rate, which is that of f16 accumulation. For the card of the machine
//! itself, measured rates are used instead.

/// Specification of a card.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Card {
    /// Name in lower case, with dashes.
    pub name: &'static str,
    /// Advertised memory.
    pub memory_bytes: u64,
    /// Share of that memory that CUDA reports as the card's total.
    pub usable_share: f64,
    /// (major, minor).
    pub compute_capability: (u32, u32),
    /// Number of streaming multiprocessors.
    pub num_sms: u32,
    /// Memory bandwidth.
    pub bytes_per_second: f64,
    /// Rate of f32 products, without tensor cores.
    pub f32_flops: f64,
    /// Rate of products of f32 rounded to TF32; `None` if the tensor cores do not support it.
    pub tf32_flops: Option<f64>,
    /// Rate of f16 products on tensor cores, with f32 accumulation.
    pub f16_flops: f64,
    /// Rate of bf16 products on tensor cores, with f32 accumulation; `None` if the tensor cores do not support it.
    pub bf16_flops: Option<f64>,
}

// Shares are the lowest that were reported for these cards under Linux; under Windows CUDA reports nearly all of the memory.
/// GDDR without error correction: 5.79 of 6 GiB, 7.78 of 8, 11.75 of 12, 23.6 of 24.
const GDDR: f64 = 0.965;
/// GDDR with error correction, which takes a sixteenth of it: 14.56 of 16 GiB, 22.0 of 24, 44.4 of 48.
const ECC: f64 = 0.91;
/// HBM corrects errors in memory of its own: 39.4 of 40 GiB, 79.1 of 80.
const HBM: f64 = 0.98;

impl Card {
    /// Lower bound on the memory that CUDA reports for the card.
    pub fn usable_bytes(&self) -> u64 {
        (self.memory_bytes as f64 * self.usable_share) as u64
    }

    /// Estimate of the memory that a process holds before it allocates anything; the true number depends on the driver. One part is the
    /// same
    /// on every card; another grows with the number of multiprocessors, each of which has memory for its threads' local variables.
    pub fn context_bytes(&self) -> u64 {
        const MIB: u64 = 1 << 20;
        160 * MIB + u64::from(self.num_sms) * 5 * MIB / 2
    }

    /// Rate of copies from pinned host memory, with some caution: 0.8 of the slot's rate, where an H200 reaches 0.87 (51.7 GiB/s of 64
    /// GB/s).
    /// The slot has the PCI Express generation of the card's architecture and 16 lanes; small GeForce cards have 8.
    /// Express that cards of its architecture have, 16 lanes wide; the small GeForce cards have 8.
    pub fn link_bytes_per_second(&self) -> f64 {
        let lanes = match self.name {
            "rtx-3050" | "rtx-3050-6gb" | "rtx-4050" | "rtx-4060" | "rtx-4060-ti-8gb"
            | "rtx-4060-ti-16gb" | "rtx-5060" | "rtx-5060-ti-8gb" | "rtx-5060-ti-16gb" => 8.0,
            _ => 16.0,
        };
        let gigabytes_per_lane = match self.compute_capability.0 {
            0..=7 => 1.0,
            8 => 2.0,
            _ => 4.0,
        };
        0.8 * lanes * gigabytes_per_lane * 1e9
    }

    /// The compiler's name of the architecture, such as `sm_86`.
    pub fn architecture(&self) -> String {
        format!(
            "sm_{}{}",
            self.compute_capability.0, self.compute_capability.1
        )
    }
}

/// Datasheet numbers: name, GiB, multiprocessors, GB/s, TFLOP/s of f32.
struct Sold(&'static str, u64, u32, f64, f64);

const fn card(
    sold: Sold,
    compute_capability: (u32, u32),
    usable_share: f64,
    times_f32: [f64; 3],
) -> Card {
    let Sold(name, gib, num_sms, gigabytes_per_second, tera_f32) = sold;
    let f32_flops = tera_f32 * 1e12;
    let [tf32, f16, bf16] = times_f32;
    Card {
        name,
        memory_bytes: gib << 30,
        usable_share,
        compute_capability,
        num_sms,
        bytes_per_second: gigabytes_per_second * 1e9,
        f32_flops,
        tf32_flops: if tf32 > 0.0 {
            Some(tf32 * f32_flops)
        } else {
            None
        },
        f16_flops: f16 * f32_flops,
        bf16_flops: if bf16 > 0.0 {
            Some(bf16 * f32_flops)
        } else {
            None
        },
    }
}

/// Turing's tensor cores support neither bf16 nor TF32.
const fn turing(sold: Sold, usable_share: f64, f16_times_f32: f64) -> Card {
    card(sold, (7, 5), usable_share, [0.0, f16_times_f32, 0.0])
}

/// GeForce RTX 30, 40 and 50. Source: "NVIDIA Ampere GA102", "Ada" and "RTX Blackwell GPU Architecture" whitepapers, which agree: f16
/// and bf16 with f32 accumulation at twice the f32 rate, TF32 at the f32 rate.
const fn geforce(sold: Sold, compute_capability: (u32, u32)) -> Card {
    card(sold, compute_capability, GDDR, [1.0, 2.0, 2.0])
}

/// Workstation and server cards with the chips of GeForce RTX 30 and 40, at the full rate: 4 times f32, TF32 twice.
const fn professional(sold: Sold, compute_capability: (u32, u32), usable_share: f64) -> Card {
    card(sold, compute_capability, usable_share, [2.0, 4.0, 4.0])
}

/// Cards with HBM: `tera_f16` is the datasheet's TFLOP/s of f16 and bf16; TF32 has half of that rate.
const fn hbm(sold: Sold, compute_capability: (u32, u32), tera_f16: f64) -> Card {
    let f16 = tera_f16 / sold.4;
    card(sold, compute_capability, HBM, [f16 / 2.0, f16, f16])
}

/// All cards, by name.
pub static CARDS: &[Card] = &[
    // "NVIDIA A10", "A100", "A30" and "A40 Tensor Core GPU" datasheets; "NVIDIA A100 Tensor Core GPU Architecture".
    professional(Sold("a10", 24, 72, 600.0, 31.2), (8, 6), ECC),
    hbm(Sold("a100-40gb", 40, 108, 1555.0, 19.5), (8, 0), 312.0),
    hbm(Sold("a100-80gb", 80, 108, 2039.0, 19.5), (8, 0), 312.0),
    hbm(Sold("a100-80gb-pcie", 80, 108, 1935.0, 19.5), (8, 0), 312.0),
    hbm(Sold("a30", 24, 56, 933.0, 10.3), (8, 0), 165.0),
    professional(Sold("a40", 48, 84, 696.0, 37.4), (8, 6), ECC),
    // "NVIDIA H100" and "H200 Tensor Core GPU" datasheets, whose rates with sparsity are halved here.
    hbm(Sold("h100-pcie", 80, 114, 2039.0, 51.2), (9, 0), 756.0),
    hbm(Sold("h100-sxm", 80, 132, 3350.0, 66.9), (9, 0), 989.4),
    hbm(Sold("h200", 141, 132, 4800.0, 66.9), (9, 0), 989.4),
    // "NVIDIA L4" and "L40S" datasheets.
    professional(Sold("l4", 24, 58, 300.0, 30.3), (8, 9), ECC),
    professional(Sold("l40s", 48, 142, 864.0, 91.6), (8, 9), ECC),
    // "NVIDIA Turing GPU Architecture" whitepaper, at the reference boost clock; NVIDIA's product pages for the Super cards.
    // f16 with f32 accumulation is half of the tensor cores' rate, 4 times f32.
    turing(Sold("rtx-2060", 6, 30, 336.0, 6.45), GDDR, 4.0),
    turing(Sold("rtx-2070", 8, 36, 448.0, 7.46), GDDR, 4.0),
    turing(Sold("rtx-2070-super", 8, 40, 448.0, 9.06), GDDR, 4.0),
    turing(Sold("rtx-2080", 8, 46, 448.0, 10.07), GDDR, 4.0),
    turing(Sold("rtx-2080-super", 8, 48, 496.0, 11.15), GDDR, 4.0),
    turing(Sold("rtx-2080-ti", 11, 68, 616.0, 13.45), GDDR, 4.0),
    // "NVIDIA Ampere GA102 GPU Architecture" for 3070 to 3090; NVIDIA's product pages for the other cards.
    geforce(Sold("rtx-3050", 8, 20, 224.0, 9.1), (8, 6)),
    geforce(Sold("rtx-3050-6gb", 6, 18, 168.0, 6.77), (8, 6)),
    geforce(Sold("rtx-3060", 12, 28, 360.0, 12.7), (8, 6)),
    geforce(Sold("rtx-3060-ti", 8, 38, 448.0, 16.2), (8, 6)),
    geforce(Sold("rtx-3070", 8, 46, 448.0, 20.3), (8, 6)),
    geforce(Sold("rtx-3070-ti", 8, 48, 608.0, 21.7), (8, 6)),
    geforce(Sold("rtx-3080", 10, 68, 760.0, 29.8), (8, 6)),
    geforce(Sold("rtx-3080-12gb", 12, 70, 912.0, 30.6), (8, 6)),
    geforce(Sold("rtx-3080-ti", 12, 80, 912.0, 34.1), (8, 6)),
    geforce(Sold("rtx-3090", 24, 82, 936.0, 35.6), (8, 6)),
    geforce(Sold("rtx-3090-ti", 24, 84, 1008.0, 40.0), (8, 6)),
    // "NVIDIA Ada GPU Architecture" for 4080 and 4090; NVIDIA's product pages for the other cards. The 4050 exists only in laptops; its
    // rate is at its highest clock.
    geforce(Sold("rtx-4050", 6, 20, 192.0, 12.1), (8, 9)),
    geforce(Sold("rtx-4060", 8, 24, 272.0, 15.1), (8, 9)),
    geforce(Sold("rtx-4060-ti-16gb", 16, 34, 288.0, 22.1), (8, 9)),
    geforce(Sold("rtx-4060-ti-8gb", 8, 34, 288.0, 22.1), (8, 9)),
    geforce(Sold("rtx-4070", 12, 46, 504.0, 29.1), (8, 9)),
    geforce(Sold("rtx-4070-super", 12, 56, 504.0, 35.5), (8, 9)),
    geforce(Sold("rtx-4070-ti", 12, 60, 504.0, 40.1), (8, 9)),
    geforce(Sold("rtx-4070-ti-super", 16, 66, 672.0, 44.1), (8, 9)),
    geforce(Sold("rtx-4080", 16, 76, 717.0, 48.7), (8, 9)),
    geforce(Sold("rtx-4080-super", 16, 80, 736.0, 52.2), (8, 9)),
    geforce(Sold("rtx-4090", 24, 128, 1008.0, 82.6), (8, 9)),
    // "NVIDIA RTX Blackwell GPU Architecture" for 5070 to 5090; NVIDIA's product pages for the 5060s.
    geforce(Sold("rtx-5060", 8, 30, 448.0, 19.2), (12, 0)),
    geforce(Sold("rtx-5060-ti-16gb", 16, 36, 448.0, 23.7), (12, 0)),
    geforce(Sold("rtx-5060-ti-8gb", 8, 36, 448.0, 23.7), (12, 0)),
    geforce(Sold("rtx-5070", 12, 48, 672.0, 30.9), (12, 0)),
    geforce(Sold("rtx-5070-ti", 16, 70, 896.0, 43.9), (12, 0)),
    geforce(Sold("rtx-5080", 16, 84, 960.0, 56.3), (12, 0)),
    geforce(Sold("rtx-5090", 32, 170, 1792.0, 104.8), (12, 0)),
    // "NVIDIA RTX 6000 Ada Generation" datasheet; error correction can be switched off, which leaves more memory.
    professional(Sold("rtx-6000-ada", 48, 142, 960.0, 91.1), (8, 9), ECC),
    // "NVIDIA RTX A4000", "A5000" and "A6000" datasheets; error correction is off by default.
    professional(Sold("rtx-a4000", 16, 48, 448.0, 19.2), (8, 6), GDDR),
    professional(Sold("rtx-a5000", 24, 64, 768.0, 27.8), (8, 6), GDDR),
    professional(Sold("rtx-a6000", 48, 84, 768.0, 38.7), (8, 6), GDDR),
    // "NVIDIA T4" datasheet: the full rate of Turing's tensor cores.
    turing(Sold("t4", 16, 40, 320.0, 8.1), ECC, 8.0),
];

/// Names that drivers and shops use, folded.
const ALIASES: [(&str, &str); 7] = [
    ("a100pcie40gb", "a100-40gb"),
    ("a100sxm440gb", "a100-40gb"),
    ("a100pcie80gb", "a100-80gb-pcie"),
    ("a100sxm480gb", "a100-80gb"),
    ("h10080gbhbm3", "h100-sxm"),
    ("h100sxm5", "h100-sxm"),
    ("h200sxm", "h200"),
];

/// A name reduced to letters and digits in lower case, without filler words.
fn folded(name: &str) -> String {
    let mut text = name.to_lowercase();
    for word in ["nvidia", "geforce", "tesla", "quadro", "generation", "(tm)"] {
        text = text.replace(word, "");
    }
    let letters: String = text.chars().filter(char::is_ascii_alphanumeric).collect();
    letters.replace("gib", "gb")
}

/// Finds a card by name, ignoring case, spaces, `NVIDIA`, `GeForce`, a missing `RTX` and a correct memory size.
///
/// # Errors
/// Names of the cards that the name may mean, or the nearest names.
pub fn find(name: &str) -> Result<&'static Card, String> {
    let wanted = folded(name);
    let exact = |wanted: &str| {
        let alias = ALIASES
            .iter()
            .find(|(alias, _)| *alias == wanted)
            .map(|(_, name)| folded(name));
        let wanted = alias.unwrap_or_else(|| wanted.to_owned());
        CARDS
            .iter()
            .find(|card| folded(card.name) == wanted || folded(card.name) == format!("rtx{wanted}"))
    };
    let with_size = || {
        let digits = wanted.strip_suffix("gb")?;
        // In "rtx306012gb", the digits of the size are those that leave the name of a card.
        (1..=3)
            .filter_map(|num_digits| digits.split_at_checked(digits.len().checked_sub(num_digits)?))
            .find_map(|(rest, size)| {
                let gib: u64 = size.parse().ok()?;
                exact(rest).filter(|card| card.memory_bytes == gib << 30)
            })
    };
    if let Some(card) = exact(&wanted).or_else(with_size) {
        return Ok(card);
    }
    let begins = |card: &&Card| {
        let known = folded(card.name);
        known
            .strip_prefix("rtx")
            .unwrap_or(&known)
            .starts_with(wanted.strip_prefix("rtx").unwrap_or(&wanted))
    };
    let meant: Vec<&str> = CARDS.iter().filter(begins).map(|card| card.name).collect();
    if wanted.len() > 1 && (1..=4).contains(&meant.len()) {
        return Err(format!("{name:?} is not one card: {}", meant.join(" or ")));
    }
    let mut near: Vec<(f64, &str)> = CARDS
        .iter()
        .map(|card| (strsim::jaro_winkler(&folded(card.name), &wanted), card.name))
        .collect();
    near.sort_by(|a, b| b.0.total_cmp(&a.0));
    let near: Vec<&str> = near.into_iter().take(3).map(|(_, name)| name).collect();
    Err(format!(
        "{name:?} is not among the cards that are known here; nearest: {}",
        near.join(", ")
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_sane() {
        for pair in CARDS.windows(2) {
            assert!(
                pair[0].name < pair[1].name,
                "{} before {}",
                pair[0].name,
                pair[1].name
            );
        }
        for card in CARDS {
            // f32 = multiprocessors x lanes x 2 x clock: a wrong digit gives an impossible clock.
            let lanes = if matches!(card.compute_capability, (7, 5) | (8, 0)) {
                64.0
            } else {
                128.0
            };
            let clock = card.f32_flops / (f64::from(card.num_sms) * lanes * 2.0);
            assert!((1.4e9..2.7e9).contains(&clock), "{}: {clock}", card.name);
            assert!(card.f16_flops > card.f32_flops, "{}", card.name);
            assert!(
                card.bf16_flops.is_none_or(|rate| rate == card.f16_flops),
                "{}",
                card.name
            );
            assert_eq!(
                card.bf16_flops.is_some(),
                card.compute_capability >= (8, 0),
                "{}",
                card.name
            );
            assert_eq!(
                card.tf32_flops.is_some(),
                card.compute_capability >= (8, 0),
                "{}",
                card.name
            );
            assert!(
                card.usable_bytes() < card.memory_bytes
                    && card.context_bytes() < card.usable_bytes() / 8
            );
        }
    }

    #[test]
    fn rates_are_those_of_the_datasheets() {
        let rate = |name: &str| find(name).map(|card| (card.f16_flops / 1e11).round() / 10.0);
        assert_eq!(rate("rtx-2080-ti"), Ok(53.8));
        assert_eq!(rate("rtx-3090"), Ok(71.2));
        assert_eq!(rate("rtx-4090"), Ok(165.2));
        assert_eq!(rate("rtx-5090"), Ok(209.6));
        assert_eq!(rate("rtx-a6000"), Ok(154.8));
        assert_eq!(rate("t4"), Ok(64.8));
        assert_eq!(rate("a10"), Ok(124.8));
        assert_eq!(rate("h200"), Ok(989.4));
        assert_eq!(
            find("rtx-3060").map(Card::architecture),
            Ok("sm_86".to_owned())
        );
    }

    #[test]
    fn names_are_taken_as_people_and_drivers_write_them() {
        for card in CARDS {
            assert_eq!(find(card.name), Ok(card));
        }
        for (written, meant) in [
            ("NVIDIA GeForce RTX 4090", "rtx-4090"),
            ("geforce rtx3080ti", "rtx-3080-ti"),
            ("4070 Ti SUPER", "rtx-4070-ti-super"),
            ("RTX 3060 12GB", "rtx-3060"),
            ("rtx_3080 10 GiB", "rtx-3080"),
            ("RTX 3080 12 GB", "rtx-3080-12gb"),
            ("RTX 4060 Ti 16GB", "rtx-4060-ti-16gb"),
            ("Tesla T4", "t4"),
            ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
            ("NVIDIA A100 80GB PCIe", "a100-80gb-pcie"),
            ("NVIDIA H100 80GB HBM3", "h100-sxm"),
            ("NVIDIA RTX 6000 Ada Generation", "rtx-6000-ada"),
            ("A6000", "rtx-a6000"),
            ("H200 141GB", "h200"),
        ] {
            assert_eq!(find(written).map(|card| card.name), Ok(meant), "{written}");
        }
    }

    #[test]
    fn a_name_of_several_cards_names_them() {
        assert_eq!(
            find("RTX 4060 Ti").map(|card| card.name),
            Err("\"RTX 4060 Ti\" is not one card: rtx-4060-ti-16gb or rtx-4060-ti-8gb".to_owned())
        );
        assert!(find("h100").is_err_and(|error| error.contains("h100-pcie or h100-sxm")));
    }

    #[test]
    fn an_unknown_name_gives_the_nearest() {
        assert!(
            find("rtx-4091").is_err_and(|error| error.contains("nearest: rtx-4090")),
            "{:?}",
            find("rtx-4091")
        );
        assert!(find("").is_err_and(|error| error.contains("nearest")));
        // A wrong size is an error.
        assert!(find("rtx 3060 16gb").is_err());
    }
}
