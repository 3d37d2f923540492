"""Models of tables as sums of small tables: one for each column, and for screened pairs and triples of columns.

levels      columns as small whole numbers: categories by their code, numbers by their quantile in a noisy marginal
design      the rows that a linear model learns: which cells of which tables a record is in, and cosines of it
training    what is released of the records: marginals, residuals of pairs, gradients
model       what was released, as tables that are added up; importance, shapes and heat maps

Promises: each release of ``training`` moves by no more than its stated bound where one record or unit more is there.
May import: data, linear, private_sum and what is below; of fit, only ``expansion``.
"""
