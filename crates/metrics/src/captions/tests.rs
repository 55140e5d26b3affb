//! Comparison with the real packages (`fixtures/make_captions.py`), and invariants for arbitrary captions.

use proptest::prelude::*;
use serde_json::Value;

use super::*;

fn golden() -> Value {
    serde_json::from_str(include_str!("../../tests/fixtures/captions.json")).unwrap()
}

fn strings(list: &Value) -> Vec<String> {
    let list = list.as_array().unwrap().iter();
    list.map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn numbers(list: &Value) -> Vec<f64> {
    let list = list.as_array().unwrap().iter();
    list.map(|number| number.as_f64().unwrap()).collect()
}

fn assert_near(found: f64, expected: &Value, what: &str) {
    let expected = expected.as_f64().unwrap();
    let apart = (found - expected).abs();
    assert!(
        apart <= 1e-12 * expected.abs().max(1e-3),
        "{what}: {found}, expected {expected}"
    );
}

#[test]
fn tokens_are_those_of_the_ptb_tokenizer() {
    let golden = golden();
    let lines = golden["lines"].as_array().unwrap();
    let mut different = Vec::new();
    for line in lines {
        let text = line["text"].as_str().unwrap();
        let expected = strings(&line["tokens"]);
        let found = coco::tokenize(text);
        if found != expected {
            different.push(format!("{text}\n  {expected:?}\n  {found:?}"));
        }
    }
    assert!(lines.len() > 650);
    assert!(
        different.is_empty(),
        "{} of {}:\n{}",
        different.len(),
        lines.len(),
        different.join("\n")
    );
}

#[test]
fn stems_are_nltks() {
    let golden = golden();
    for (word, stem) in golden["stems"].as_object().unwrap() {
        let expected = if word.len() > 3 {
            stem.as_str().unwrap()
        } else {
            word
        };
        assert_eq!(rouge_score::tokenize(word), [expected], "{word}");
    }
}

fn score(pairs: &Value, tokens: NltkTokens) -> (CaptionScores, Vec<SampleScores>) {
    let mut scorer = CaptionScorer::new(tokens);
    for pair in pairs.as_array().unwrap() {
        scorer.add(
            pair["candidate"].as_str().unwrap(),
            &strings(&pair["references"]),
        );
    }
    scorer.finish()
}

#[test]
fn scores_are_those_of_the_packages() {
    let golden = golden();
    for (name, case) in [("all", &golden), ("one sample", &golden["one"])] {
        let expected = &case["scores"];
        let (found, samples) = score(&case["pairs"], NltkTokens::Whitespace);
        for n in 0..4 {
            assert_near(
                found.bleu[n],
                &expected["bleu"][n],
                &format!("{name}, BLEU-{}", n + 1),
            );
        }
        assert_near(found.rouge_l, &expected["rouge_l"], "ROUGE-L");
        assert_near(found.cider_d, &expected["cider_d"], "CIDEr-D");
        assert_near(found.sentence_bleu, &expected["sentence_bleu"], "NLTK");
        assert_near(
            found.sentence_bleu_method1,
            &expected["sentence_bleu_method1"],
            "method1",
        );
        let rouge = [
            found.rouge_score_1,
            found.rouge_score_2,
            found.rouge_score_l,
        ];
        for (found, expected) in rouge
            .into_iter()
            .zip(expected["rouge_score"].as_array().unwrap())
        {
            assert_near(found, expected, "rouge_score");
        }
        let (lower, _) = score(&case["pairs"], NltkTokens::LowerCase);
        assert_near(
            lower.sentence_bleu,
            &expected["sentence_bleu_lower_case"],
            "lower case",
        );
        for (i, sample) in samples.iter().enumerate() {
            assert_near(
                sample.rouge_l,
                &expected["rouge_l_each"][i],
                &format!("ROUGE-L of {i}"),
            );
            assert_near(
                sample.cider_d,
                &expected["cider_d_each"][i],
                &format!("CIDEr-D of {i}"),
            );
            let bleu = numbers(&expected["bleu_each"][i]);
            for (n, (&found, &expected)) in sample.bleu.iter().zip(&bleu).enumerate() {
                let near = (found - expected).abs() <= 1e-10 * expected.max(1e-3);
                assert!(near, "BLEU-{} of {i}: {found}, expected {expected}", n + 1);
            }
        }
    }
}

#[test]
fn many_at_once_are_those_one_by_one() {
    let golden = golden();
    let pairs: Vec<(String, Vec<String>)> = (golden["pairs"].as_array().unwrap().iter())
        .map(|pair| {
            (
                pair["candidate"].as_str().unwrap().to_owned(),
                strings(&pair["references"]),
            )
        })
        .collect();
    let mut scorer = CaptionScorer::new(NltkTokens::Whitespace);
    pairs.chunks(7).for_each(|block| scorer.add_all(block));
    assert_eq!(scorer.finish().0, CaptionScores::of(&pairs));
}

#[test]
fn nothing_to_score_is_not_a_number() {
    let scores = CaptionScores::of::<&str, &str>(&[("a dog", vec![])]);
    assert_eq!(scores.num_samples, 0);
    assert!(scores.bleu[0].is_nan() && scores.rouge_l.is_nan() && scores.cider_d.is_nan());
}

fn caption() -> impl Strategy<Value = String> {
    prop::collection::vec(
        prop::sample::select(vec!["a", "red", "square", "moves", "left.", "it's", "50%"]),
        1..12,
    )
    .prop_map(|words| words.join(" "))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_text_has_tokens_without_blanks(text in "\\PC{0,40}") {
        for token in coco::tokenize(&text) {
            prop_assert!(!token.is_empty() && !token.contains([' ', '\t', '\n']), "{text:?}: {token:?}");
        }
        rouge_score::tokenize(&text);
    }

    #[test]
    fn a_caption_that_is_its_reference_has_full_marks_and_no_other_has_more(
        captions in prop::collection::vec((caption(), caption()), 2..8),
    ) {
        let same: Vec<_> = captions.iter().map(|(a, _)| (a.clone(), vec![a.clone()])).collect();
        let other: Vec<_> = captions.iter().map(|(a, b)| (a.clone(), vec![b.clone()])).collect();
        let (same, other) = (CaptionScores::of(&same), CaptionScores::of(&other));
        prop_assert!((same.bleu[0] - 1.0).abs() < 1e-6 && (same.rouge_l - 1.0).abs() < 1e-12);
        prop_assert!((same.rouge_score_1 - 1.0).abs() < 1e-12);
        for score in [other.bleu[0], other.rouge_l, other.rouge_score_1, other.rouge_score_l, other.sentence_bleu] {
            prop_assert!((0.0..=1.0 + 1e-9).contains(&score), "{other:?}");
        }
        prop_assert!((0.0..=10.0 + 1e-9).contains(&other.cider_d));
    }

    #[test]
    fn the_order_of_references_changes_nothing(
        captions in prop::collection::vec((caption(), prop::collection::vec(caption(), 1..4)), 1..6),
    ) {
        let reversed: Vec<_> = captions.iter().map(|(a, refs)| (a.clone(), refs.iter().rev().cloned().collect())).collect();
        let (forward, reversed) = (CaptionScores::of(&captions), CaptionScores::of(&reversed));
        prop_assert_eq!(forward.bleu, reversed.bleu);
        prop_assert_eq!(forward.rouge_l, reversed.rouge_l);
        prop_assert!((forward.cider_d - reversed.cider_d).abs() < 1e-12);
    }

    #[test]
    fn more_references_never_lower_a_match(candidate in caption(), first in caption(), second in caption()) {
        let one = CaptionScores::of(&[(candidate.clone(), vec![first.clone()])]);
        let two = CaptionScores::of(&[(candidate, vec![first, second])]);
        prop_assert!(two.rouge_l >= one.rouge_l - 1e-12);
        prop_assert!(two.rouge_score_1 >= one.rouge_score_1);
    }
}
