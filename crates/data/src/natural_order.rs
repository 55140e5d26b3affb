//! Natural order of file names: `frame_2` before `frame_10`, `B` between `a` and `c`.

use std::cmp::Ordering;

/// Compares runs of digits by their value and letters without their case; names that are equal in this order by their bytes.
pub fn compare(a: &str, b: &str) -> Ordering {
    by_parts(a, b).then_with(|| a.cmp(b))
}

/// Whether two names differ only in leading zeros and the case of letters.
pub(crate) fn is_same(a: &str, b: &str) -> bool {
    by_parts(a, b) == Ordering::Equal
}

fn by_parts(mut a: &str, mut b: &str) -> Ordering {
    loop {
        let parts = (NamePart::take(&mut a), NamePart::take(&mut b));
        match parts {
            (None, None) => return Ordering::Equal,
            // A prefix comes before the longer name.
            (part_a, part_b) if part_a != part_b => return part_a.cmp(&part_b),
            _ => {}
        }
    }
}

/// Numbers come before letters; numbers are compared by their digits without leading zeros, the shorter first.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum NamePart<'a> {
    Number(usize, &'a str),
    Letter(char),
}

impl<'a> NamePart<'a> {
    fn take(rest: &mut &'a str) -> Option<NamePart<'a>> {
        let first = rest.chars().next()?;
        if !first.is_ascii_digit() {
            *rest = &rest[first.len_utf8()..];
            return Some(NamePart::Letter(
                first.to_lowercase().next().unwrap_or(first),
            ));
        }
        let end = rest.find(|c: char| !c.is_ascii_digit());
        let (digits, after) = rest.split_at(end.unwrap_or(rest.len()));
        *rest = after;
        let digits = digits.trim_start_matches('0');
        Some(NamePart::Number(digits.len(), digits))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn numbers_are_counted() {
        let mut names = [
            "f_10",
            "f_2",
            "f_02",
            "F_1",
            "f",
            "g1",
            "f_2b",
            "f_100000000000000000000",
        ];
        names.sort_by(|a, b| compare(a, b));
        let expected = [
            "f",
            "F_1",
            "f_02",
            "f_2",
            "f_2b",
            "f_10",
            "f_100000000000000000000",
            "g1",
        ];
        assert_eq!(names, expected);
    }

    proptest! {
        #[test]
        fn it_is_an_order(a in "[aB01_]{0,6}", b in "[aB01_]{0,6}", c in "[aB01_]{0,6}") {
            prop_assert_eq!(compare(&a, &b), compare(&b, &a).reverse());
            prop_assert_eq!(compare(&a, &b) == Ordering::Equal, a == b);
            if compare(&a, &b).is_le() && compare(&b, &c).is_le() {
                prop_assert!(compare(&a, &c).is_le());
            }
        }
    }
}
