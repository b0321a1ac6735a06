# The names of this namespace: `globalstep.lazy` reads this file when it is imported.

from globalstep.tf1.text.string_numbers import as_string as as_string
from globalstep.tf1.text.string_numbers import string_to_number as to_number
from globalstep.tf1.text.string_ops import reduce_join as reduce_join
from globalstep.tf1.text.string_ops import regex_full_match as regex_full_match
from globalstep.tf1.text.string_ops import regex_replace as regex_replace
from globalstep.tf1.text.string_ops import split as split
from globalstep.tf1.text.string_ops import string_join as join
from globalstep.tf1.text.string_ops import string_length as length
from globalstep.tf1.text.string_ops import string_lower as lower
from globalstep.tf1.text.string_ops import string_strip as strip
from globalstep.tf1.text.string_ops import string_to_hash_bucket as to_hash_bucket
from globalstep.tf1.text.string_ops import string_to_hash_bucket_fast as to_hash_bucket_fast
from globalstep.tf1.text.string_ops import string_to_hash_bucket_strong as to_hash_bucket_strong
from globalstep.tf1.text.string_ops import string_upper as upper
from globalstep.tf1.text.string_ops import substr as substr
